"""What an export starts from: a run, a checkpoint of a run, or any directory with weights."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mappings.errors import UserError
from mappings.formats.hf_directory import read_json
from mappings.formats.manifest import NAME as MANIFEST
from mappings.formats.manifest import Manifest

LATEST = "LATEST"
DATA = "data.json"
"""Description of prepared data in its directory."""
STEP = re.compile(r"step_(\d{8})")


@dataclass(frozen=True)
class Origin:
    """A checkpoint, and what is known of the run that it is of."""

    directory: Path
    training: dict[str, Any] = field(default_factory=dict)
    """State of the run as its manifest has it; empty where this is no checkpoint of a run."""

    @property
    def config(self) -> dict[str, Any]:
        """The run's configuration as plain data; empty where there was no run."""
        found = self.training.get("config")
        return found if isinstance(found, dict) else {}

    @property
    def seq_length(self) -> int | None:
        """Tokens per sequence of the run; None where it is not known."""
        data = self.config.get("data") or {}
        length, folder = data.get("seq_length"), data.get("path")
        if length is None and folder and (description := Path(folder) / DATA).is_file():
            length = read_json(description).get("seq_length")
        return length if isinstance(length, int) else None

    @property
    def step(self) -> int:
        """Optimizer steps done; 0 where there was no run."""
        step = self.training.get("step", 0)
        return step if isinstance(step, int) else 0


def find_origin(path: Path) -> Origin:
    """The newest checkpoint of a run directory, or the directory itself.

    Raises:
        UserError: there is no such directory, or it is a run without a complete checkpoint.
    """
    if not path.is_dir():
        raise UserError(f"{path}: no such directory; name a run, one of its checkpoints, or a model directory")
    directory = _newest(path) or path
    if not (directory / MANIFEST).is_file():
        return Origin(directory)
    return Origin(directory, dict(Manifest.read(directory).training))


def _newest(run: Path) -> Path | None:
    """The checkpoint that `LATEST` names, else the newest complete one; None where this is no run."""
    latest = run / LATEST
    found = sorted(path for path in run.iterdir() if STEP.fullmatch(path.name) and (path / MANIFEST).is_file())
    if latest.is_file():
        name = latest.read_text(encoding="utf-8").strip()
        if run / name in found:
            return run / name
        names = ", ".join(path.name for path in found) or "none"
        raise UserError(f"{latest}: names {name!r}, which is no complete checkpoint; complete ones: {names}")
    if found:
        return found[-1]
    if any(STEP.fullmatch(path.name) for path in run.iterdir()):
        raise UserError(f"{run}: has no complete checkpoint")
    return None
