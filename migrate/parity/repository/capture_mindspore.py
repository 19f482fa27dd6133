"""The candidate: the converted code on MindSpore. `python -m migrate.parity.repository.capture_mindspore JOB`."""

from __future__ import annotations

import sys
from pathlib import Path

from migrate.parity.repository.job import RepositoryJob
from migrate.parity.repository.side import run
from migrate.sides.mindspore_framework import MindSpore

if __name__ == "__main__":
    run(MindSpore(), RepositoryJob.read(Path(sys.argv[1])))
