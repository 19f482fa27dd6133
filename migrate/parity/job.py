"""What a side of a parity run is asked to compute."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from mappings.formats.hf_directory import read_json

CAUSAL, MASKED = "causal", "masked"


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
    reordered: bool = False
    """Whether PyTorch computes the same in another order: rows in reverse, another number of threads."""
    task: str = CAUSAL
    """Which head and loss: `causal` or `masked`."""
    idle: tuple[str, ...] = ()
    """Weights that no loss of the comparison reaches although they could be trained."""
    untrained: tuple[str, ...] = ()
    """Weights that get no gradient in training; an optimizer of PyTorch leaves them as they are."""
    not_loaded: tuple[str, ...] = ()
    """Tensors of the directory that transformers may leave aside."""
    kept: tuple[str, ...] = ()
    """Weights in memory that come from those; PyTorch's side of stage W has them from the files."""
    renamed: Mapping[str, str] = field(default_factory=dict)
    """Modules and parameters that transformers has under another name than checkpoints: its name, theirs."""

    def write(self, path: Path) -> None:
        """Stores the job as JSON."""
        path.write_text(json.dumps(asdict(self), default=str), encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Job:
        """Reads a job that `write` stored."""
        body: dict[str, Any] = read_json(path)
        lists = {name: tuple(value) for name, value in body.items() if isinstance(value, list)}
        paths = {name: Path(body[name]) for name in ("directory", "inputs")}
        return cls(**{**body, **lists, **paths})

    def batch(self) -> dict[str, np.ndarray]:
        """The inputs."""
        with np.load(self.inputs) as arrays:
            return {name: arrays[name] for name in arrays.files}

    def stored_name(self, name: str) -> str:
        """How checkpoints call a module or parameter of transformers."""
        for here, there in self.renamed.items():
            if name == here or name.startswith(f"{here}."):
                return there + name.removeprefix(here)
        return name
