"""One of four ranks: what collectives and context parallelism have to show, in one launch."""

from __future__ import annotations

from typing import Any

import collectives_worker
import context_worker
import mindspore as ms
from harness import report


def work() -> dict[str, Any]:
    ms.runtime.launch_blocking()
    return {"collectives": collectives_worker.grid(), "context": context_worker.compare()}


if __name__ == "__main__":
    report(work)
