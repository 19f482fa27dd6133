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
from mappings.formats.manifest import Manifest, damaged_files, fsync_directory

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
    name = path.read_text(encoding="utf-8").strip()
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


def verify(directory: Path, manifest: Manifest) -> None:
    """Checks the hash of every file of a checkpoint.

    Raises:
        UserError: lists what is missing or damaged.
    """
    if problems := damaged_files(directory, manifest):
        raise UserError(
            f"{directory}: damaged checkpoint: {'; '.join(problems)}; "
            f"to go on from an older one, write its name into {LATEST}"
        )


def commit(run: Path, step: int, keep: int) -> None:
    """Makes a staged checkpoint the newest: rename, `LATEST`, then removal of all but the last `keep` up to it."""
    target = run / step_name(step)
    if target.exists():
        # A run that went back to an earlier checkpoint passes this step again. LATEST names the earlier one.
        shutil.rmtree(target)
    (run / staging_name(step)).rename(target)
    fsync_directory(run)
    temporary = run / f"{LATEST}.tmp"
    with temporary.open("w", encoding="utf-8") as file:
        file.write(f"{target.name}\n")
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(run / LATEST)
    fsync_directory(run)
    for _, directory in [found for found in complete_checkpoints(run) if found[0] <= step][:-keep]:
        (directory / MANIFEST).unlink()  # first, so that a half-removed directory never looks complete
        shutil.rmtree(directory)


def remove_leftovers(run: Path) -> None:
    """Removes what an interrupted save or removal left behind."""
    for path in run.glob(".step_*.tmp"):
        shutil.rmtree(path)
    for path in run.glob("step_*"):
        if STEP.fullmatch(path.name) and path.is_dir() and not (path / MANIFEST).is_file():
            shutil.rmtree(path)
