"""The run directory of a run: it can be written, holds no other run, and its disk has room."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Protocol

from mappings.errors import UserError
from ms_models.train.checkpoints.run_directory import complete_checkpoints
from ms_models.train.config import RunConfig

BYTES_PER_PARAMETER = 12
"""Of a checkpoint: fp32 weight and two moments."""


class Sized(Protocol):
    """A model as far as its checkpoints take room."""

    @property
    def parameters(self) -> int:
        """Number of parameters."""


def check_directory(config: RunConfig) -> str:
    """The run directory can be written and holds no other run.

    Raises:
        UserError: it cannot, or it does.
    """
    run = Path(config.output.directory)
    parent = nearest(run)
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise UserError(f"output.directory {run}: cannot be written")
    if (saved := complete_checkpoints(run)) and not config.checkpoint.is_resumed:
        raise UserError(
            f"{run}: holds a run with checkpoints up to step {saved[-1][0]}; use --resume or another directory"
        )
    return str(run)


def check_disk(config: RunConfig, model: Sized) -> str:
    """There is room for the checkpoints that will be there at the same time, the one being written included.

    Raises:
        UserError: there is not.
    """
    run = Path(config.output.directory)
    count = max(1, config.checkpoint.count(config.train.steps) - len(complete_checkpoints(run)))
    need = BYTES_PER_PARAMETER * model.parameters * count
    free = shutil.disk_usage(nearest(run)).free
    if free < need:
        raise UserError(
            f"output.directory {run}: {need / 1e9:.2f} GB are needed for checkpoints ({count}, with the one that is "
            f"being written), {free / 1e9:.2f} GB are free; lower checkpoint.keep or choose another disk"
        )
    needs = "1 checkpoint needs" if count == 1 else f"{count} checkpoints need"
    return f"{needs} {need / 1e9:.2f} GB, {free / 1e9:.2f} GB are free"


def check_output(config: RunConfig, model: Sized) -> None:
    """Both of the above.

    Raises:
        UserError: says which of them fails.
    """
    check_directory(config)
    check_disk(config, model)


def nearest(path: Path) -> Path:
    """The path, or the nearest directory above it that exists."""
    return next(one for one in (path, *path.absolute().parents) if one.exists())
