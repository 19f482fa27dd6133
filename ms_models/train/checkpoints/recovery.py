"""Which checkpoints of a run are whole, and what becomes of the others. Imports no MindSpore."""

from __future__ import annotations

from pathlib import Path

from mappings.errors import UserError
from mappings.formats.manifest import Manifest, damaged_files, fsync_directory
from ms_models.train.checkpoints.run_directory import (
    LATEST,
    STEP,
    complete_checkpoints,
    find_latest,
    point_latest,
    read_manifest,
)

DAMAGED = "damaged"
ABANDONED = "abandoned"


def problems_of(directory: Path) -> list[str]:
    """One line for each thing that is wrong with a checkpoint; empty when every hash is the manifest's."""
    try:
        manifest = read_manifest(directory)
    except UserError as error:
        return [str(error)]
    return damaged_files(directory, manifest)


def verify(directory: Path, manifest: Manifest) -> None:
    """Checks the hash of every file of a checkpoint.

    Raises:
        UserError: lists what is missing or damaged, and says which older checkpoint is whole.
    """
    if problems := damaged_files(directory, manifest):
        raise UserError(f"{directory}: damaged checkpoint: {'; '.join(problems)}; {way_back(directory)}")


def way_back(directory: Path) -> str:
    """How to go on from the newest whole checkpoint before a damaged one."""
    for _, other in reversed(complete_checkpoints(directory.parent)):
        if other.name < directory.name and not problems_of(other):
            return f"{other.name} is whole: go on from there with --resume-from {other.name}"
    return "no older checkpoint of this run is whole: start anew in another output.directory"


def last_good(run: Path) -> tuple[Path, list[str]]:
    """The newest whole checkpoint that is not after the one `LATEST` names; for restarts that nobody watches.

    Damaged ones on the way are renamed to `step_NNNNNNNN.damaged`, so that they count no longer and nothing is lost,
    and `LATEST` names the one that was found.

    Returns:
        Its directory, and a line for each one that was set aside.

    Raises:
        UserError: there is none.
    """
    saved = complete_checkpoints(run)
    try:
        newest = find_latest(run).name
    except UserError:
        newest = saved[-1][1].name if saved else ""
    lines: list[str] = []
    for _, directory in reversed(saved):
        if directory.name > newest:
            continue
        if not (problems := problems_of(directory)):
            latest = run / LATEST
            if not latest.is_file() or latest.read_text(encoding="utf-8", errors="replace").strip() != directory.name:
                point_latest(run, directory.name)
            return directory, lines
        lines.append(
            f"{directory.name} is damaged ({'; '.join(problems)}) and was renamed to {_set_aside(directory, DAMAGED)}"
        )
    found = f" ({'; '.join(lines)})" if lines else ""
    raise UserError(f"{run}: no whole checkpoint to go on from{found}")


def chosen(run: Path, name: str) -> Path:
    """The checkpoint of a run that `--resume-from` names.

    Raises:
        UserError: no such name, or none of the run's complete checkpoints.
    """
    saved = {directory.name: directory for _, directory in complete_checkpoints(run)}
    if not STEP.fullmatch(name) or name not in saved:
        others = ", ".join(saved) or "none"
        raise UserError(f"--resume-from {name}: {run} has no such checkpoint; complete ones: {others}")
    return saved[name]


def abandon_later(run: Path, step: int) -> None:
    """Renames the checkpoints after `step`, to which the user went back, to `step_NNNNNNNN.abandoned`.

    They are of a run that is not this one any more: they must neither count as its last ones nor be restarted from.
    """
    for number, directory in complete_checkpoints(run):
        if number > step:
            _set_aside(directory, ABANDONED)


def aside_name(directory: Path, suffix: str) -> str:
    """The name that a checkpoint gets which is set aside: with the suffix, numbered from the second one on."""
    name, number = f"{directory.name}.{suffix}", 1
    while (directory.parent / name).exists():
        number += 1
        name = f"{directory.name}.{suffix}{number}"
    return name


def _set_aside(directory: Path, suffix: str) -> str:
    name = aside_name(directory, suffix)
    directory.rename(directory.parent / name)
    fsync_directory(directory.parent)
    return name
