"""A rank with a fault of `plants_layouts`, named by the environment: `python -m planted_rank JOB OUT LAYOUT`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

FAULT = "PLANTED_FAULT"


def main(job: Path, out: Path, layout: str) -> None:
    """Captures as `migrate.parity.layouts.rank` does."""
    from planting import planted
    from plants_layouts import replacements

    from migrate.parity.layouts.rank import main as rank

    if os.environ.get("MS_ROLE") == "MS_SCHED":
        rank(job, out, layout)
        return
    with planted(*replacements()[os.environ[FAULT]]):
        rank(job, out, layout)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
