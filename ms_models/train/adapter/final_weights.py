"""`FinalWeights`: what the converted repository itself loads, written when a run has ended."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mappings.errors import UserError
from mappings.formats.manifest import fsync_directory
from mappings.formats.safetensors import build_header, read_bytes, read_header
from ms_models.train.adapter.origin import BUFFERS
from ms_models.train.adapter.tensors import Tensors
from ms_models.train.adapter.weights import wholes
from ms_models.train.services.service import Service

FILE = "weights.safetensors"
"""In the run directory."""


class FinalWeights(Service):
    """After the checkpoint of the last step, its tensors whole in one file; on one rank.

    Args:
        run: directory of the run.
        last: step of the run's end.
    """

    def __init__(self, run: Path, last: int) -> None:
        self.run, self.last = run, last

    def after_save(self, step: int, directory: Path, record: Mapping[str, Any]) -> None:
        """Writes the file where this is the last checkpoint."""
        if step == self.last:
            write_wholes(directory, self.run / FILE)


def write_wholes(checkpoint: Path, target: Path) -> None:
    """Puts the tensors of a checkpoint of any layout together: fp32, by every name that the model has for them.

    One tensor is in memory at a time. The file appears when it is complete; an older one is replaced.

    Args:
        checkpoint: of a run of converted code.
        target: safetensors file.

    Raises:
        UserError: the checkpoint is damaged, or the file cannot be written.
    """
    names = [(name, "F32", one.shape) for one in Tensors.read(checkpoint).wholes for name in (one.name, *one.aliases)]
    others = read_header(checkpoint / BUFFERS)[0] if (checkpoint / BUFFERS).is_file() else []
    header, _ = build_header([*names, *((one.name, one.dtype, one.shape) for one in others)], {"format": "pt"})
    staging = target.with_name(f"{target.name}.tmp{os.getpid()}")
    try:
        with staging.open("wb") as file:
            file.write(header)
            for _, value in wholes(checkpoint):
                file.write(np.ascontiguousarray(value, "<f4").tobytes())
            for one in others:
                file.write(read_bytes(one))
            file.flush()
            os.fsync(file.fileno())
        staging.replace(target)
        fsync_directory(target.parent)
    except OSError as error:
        raise UserError(f"{target}: cannot be written ({error.strerror}); {checkpoint} has the weights") from error
    finally:
        staging.unlink(missing_ok=True)
