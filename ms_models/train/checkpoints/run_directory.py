"""Names inside a run directory, and which checkpoints in it are complete. Imports no MindSpore.

A `step_NNNNNNNN` directory appears by one rename, manifest included, so a directory with a manifest is complete.
`LATEST` names the one to go on from and is replaced after the rename.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from mappings.errors import UserError
from mappings.formats.manifest import NAME as MANIFEST
from mappings.formats.manifest import Manifest, fsync_directory

LATEST = "LATEST"
METRICS = "metrics.jsonl"
LOGS = "logs"
PROGRESS = "progress.txt"
STEP = re.compile(r"step_(\d{8})")


def step_name(step: int) -> str:
    """Name of the checkpoint of a step."""
    return f"step_{step:08d}"


def staging_name(step: int) -> str:
    """Name under which a checkpoint is written before it is complete."""
    return f".{step_name(step)}.tmp"


def complete_checkpoints(run: Path) -> list[tuple[int, Path]]:
    """(step, directory) of every complete checkpoint of a run, ascending."""
    found = []
    for path in run.iterdir() if run.is_dir() else ():
        if (match := STEP.fullmatch(path.name)) and (path / MANIFEST).is_file():
            found.append((int(match[1]), path))
    return sorted(found)


def find_latest(run: Path) -> Path:
    """The checkpoint that `LATEST` names; without that file (a checkpoint put there by hand), the newest one.

    Raises:
        UserError: there is none, or it is not complete.
    """
    path = run / LATEST
    if not path.is_file():
        if saved := complete_checkpoints(run):
            return saved[-1][1]
        raise UserError(f"{run}: no {LATEST} file and no checkpoint to resume from; start without --resume")
    name = path.read_text(encoding="utf-8", errors="replace").strip()
    if not STEP.fullmatch(name):
        raise UserError(f"{path}: must hold a name like {step_name(100)}, found {name!r}")
    if not (run / name / MANIFEST).is_file():
        others = ", ".join(directory.name for _, directory in complete_checkpoints(run)) or "none"
        raise UserError(f"{path}: names {name}, which is missing or incomplete; complete checkpoints: {others}")
    return run / name


def read_manifest(directory: Path) -> Manifest:
    """The manifest of a training checkpoint.

    Raises:
        UserError: incomplete, or no checkpoint of a run.
    """
    manifest = Manifest.read(directory)
    if not manifest.training:
        raise UserError(f"{directory}: holds weights but no training state; name it as model.path instead of resuming")
    return manifest


def commit(run: Path, step: int, keep: int, permanent_every: int = 0) -> None:
    """Makes a staged checkpoint the newest: rename, `LATEST`, then removal of what is kept no longer.

    Args:
        run: run directory.
        step: of the staged checkpoint.
        keep: the last ones up to it that stay.
        permanent_every: those of multiples of this step stay as well; 0 for none.
    """
    target = run / step_name(step)
    replaced = None
    if target.exists():
        # A run that went back to an earlier checkpoint passes this step again. LATEST names the earlier one.
        replaced = run / f".{target.name}.replaced.tmp"
        target.rename(replaced)
    (run / staging_name(step)).rename(target)
    fsync_directory(run)
    point_latest(run, target.name)
    if replaced is not None:
        shutil.rmtree(replaced)
    for directory in outlived(complete_checkpoints(run), step, keep, permanent_every):
        (directory / MANIFEST).unlink()  # first, so that a half-removed directory never looks complete
        shutil.rmtree(directory)


def outlived(saved: list[tuple[int, Path]], step: int, keep: int, permanent_every: int) -> list[Path]:
    """Of complete checkpoints, ascending, those to remove once that of `step` is complete; later ones stay."""
    older = [(number, path) for number, path in saved if number <= step][:-keep]
    return [path for number, path in older if not permanent_every or number % permanent_every]


def point_latest(run: Path, name: str) -> None:
    """Replaces `LATEST`."""
    temporary = run / f"{LATEST}.tmp"
    with temporary.open("w", encoding="utf-8") as file:
        file.write(f"{name}\n")
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(run / LATEST)
    fsync_directory(run)


def remove_leftovers(run: Path) -> None:
    """Removes what an interrupted save or removal left behind."""
    for path in run.glob(".step_*.tmp"):
        shutil.rmtree(path)
    for path in run.glob("step_*"):
        if STEP.fullmatch(path.name) and path.is_dir() and not (path / MANIFEST).is_file():
            shutil.rmtree(path)
