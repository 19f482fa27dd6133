"""The worker with the accidents of a long run, each at a step named in the environment and, but for one, met once.

`MSMIGRATE_TEST_ACCIDENTS` is JSON: name of the accident to its step. A file in the run directory says that one has
happened, so that the attempt after a restart passes the step as if nothing had been.
"""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from ms_models.train import worker

VARIABLE = "MSMIGRATE_TEST_ACCIDENTS"
ALWAYS = "nan batch"
"""Belongs to the data: whoever comes to its step meets it."""
CULPRIT = 1


def plant(accidents: dict[str, int], run: Path) -> None:
    """Lets the accidents happen on one rank."""
    from ms_models.train import gradients
    from ms_models.train.services import heartbeat

    at = 0

    def happens(accident: str) -> bool:
        if accidents.get(accident) != at or int(os.environ["RANK_ID"]) != CULPRIT:
            return False
        mark = run / f"happened_{accident.replace(' ', '_')}"
        if accident == ALWAYS:
            return True
        first = not mark.exists()
        mark.touch()
        return first

    true_before, true_norm = heartbeat.Heartbeat.before_step, gradients.GradientBuffers.norm

    def before_step(self: Any, step: int) -> None:
        nonlocal at
        at = step
        true_before(self, step)
        if happens("kill"):
            os.kill(os.getpid(), signal.SIGKILL)
        if happens("defect"):
            raise RuntimeError("planted: a device went away")
        if happens("hang"):
            hang_in_a_read()

    def norm(self: Any, *args: Any, **kwargs: Any) -> float:
        value = float(true_norm(self, *args, **kwargs))
        return math.nan if happens(ALWAYS) or happens("bit flip") else value

    heartbeat.Heartbeat.before_step = before_step  # type: ignore[method-assign]
    gradients.GradientBuffers.norm = norm  # type: ignore[method-assign]


def hang_in_a_read() -> None:
    """What a dead file system does."""
    time.sleep(3600)


if __name__ == "__main__":
    if os.environ.get("MS_ROLE") != "MS_SCHED":
        plant(json.loads(os.environ[VARIABLE]), Path(sys.argv[1]).parent)
    sys.exit(worker.main())
