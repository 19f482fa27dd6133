"""The reference: the original on PyTorch. `python -m migrate.parity.repository.capture_torch JOB`."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from migrate.parity.repository.job import RepositoryJob
from migrate.parity.repository.side import run
from migrate.parity.repository.states import move
from migrate.sides.torch_framework import Torch


class Torch64(Torch):
    """PyTorch in fp64: constants that modules make are fp64 as well."""

    def __init__(self) -> None:
        super().__init__()
        self.torch.set_default_dtype(self.torch.float64)

    def set_mode(self, module: Any, training: bool) -> None:
        """The mode, and the precision."""
        super().set_mode(module, training)
        module.double()

    def from_numpy(self, values: np.ndarray) -> Any:
        """Array to tensor; floating point becomes fp64."""
        return super().from_numpy(values.astype(np.float64) if values.dtype.kind == "f" else values)


def main(job: RepositoryJob) -> None:
    """Captures the job."""
    run(Torch(partial(move, job.state)) if job.dtype == "float32" else Torch64(), job)


if __name__ == "__main__":
    main(RepositoryJob.read(Path(sys.argv[1])))
