"""What a side of a parity run is asked to compute."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mappings.formats.hf_directory import read_json


@dataclass(frozen=True)
class Job:
    """What a side is asked to compute."""

    directory: Path
    stages: tuple[str, ...]
    inputs: Path
    """npz of `make_batch`."""
    modules: tuple[str, ...]
    """Modules whose output is recorded in stage F."""
    dtype: str = "float32"
    """Precision of the PyTorch side; float64 measures its rounding."""

    def write(self, path: Path) -> None:
        """Stores the job as JSON."""
        body = {"directory": str(self.directory), "inputs": str(self.inputs), "dtype": self.dtype}
        path.write_text(json.dumps({**body, "stages": self.stages, "modules": self.modules}), encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Job:
        """Reads a job that `write` stored."""
        body = read_json(path)
        stages, modules = tuple(body["stages"]), tuple(body["modules"])
        return cls(Path(body["directory"]), stages, Path(body["inputs"]), modules, body["dtype"])

    def batch(self) -> dict[str, np.ndarray]:
        """The inputs."""
        with np.load(self.inputs) as arrays:
            return {name: arrays[name] for name in arrays.files}
