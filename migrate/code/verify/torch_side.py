"""The reference: the repository as it is, on PyTorch. `python -m migrate.code.verify.torch_side JOB`."""

from __future__ import annotations

import sys
from pathlib import Path

from migrate.code.verify.job import Job
from migrate.code.verify.side import run
from migrate.sides.torch_framework import Torch

if __name__ == "__main__":
    run(Torch(), Job.read(Path(sys.argv[1])))
