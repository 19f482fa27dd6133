"""The worker, killed while it saves: in the save of each step of a plan, once, before a given change to the disk.

`MSMIGRATE_TEST_KILLS` is `step:rank:change,..`; `MSMIGRATE_TEST_KILLED` a directory that takes a file for each kill.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from ms_models.train import worker


def plant() -> None:
    """Watches the saves of this rank."""
    from ms_models.train.checkpoints.saver import Saver
    from tests.ms_models.train.killed_saves import Changes

    rank, folder = int(os.environ.get("RANK_ID", "0")), Path(os.environ["MSMIGRATE_TEST_KILLED"])
    plan = [tuple(map(int, one.split(":"))) for one in os.environ["MSMIGRATE_TEST_KILLS"].split(",")]
    changes, begin = Changes(0), Saver.begin
    step = 0

    def begun(self: Saver, number: int, *rest: Any) -> None:
        nonlocal step
        step = number
        deadly = [change for at, victim, change in plan if (at, victim) == (number, rank)]
        is_due = bool(deadly) and not (folder / str(number)).exists()
        changes.count, changes.deadly = 0, deadly[0] if is_due else 0
        begin(self, number, *rest)

    def see() -> None:
        changes.count += 1
        if changes.count == changes.deadly:
            os.close(os.open(folder / str(step), os.O_CREAT))
            os.kill(os.getpid(), 9)

    changes.see = see  # type: ignore[method-assign]
    Saver.begin = begun  # type: ignore[method-assign]


if __name__ == "__main__":
    if os.environ.get("MS_ROLE") != "MS_SCHED":
        plant()
    sys.exit(worker.main())
