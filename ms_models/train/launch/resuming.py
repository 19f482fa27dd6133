"""Which checkpoint a run goes on from, and whether it can; before a process is started. Imports no MindSpore."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from mappings.errors import UserError
from mappings.layout import ParallelLayout
from ms_models.data.loader import TrainingLoader
from ms_models.data.records import PreparedData
from ms_models.train.checkpoints.recovery import ABANDONED, aside_name, chosen, verify, way_back
from ms_models.train.checkpoints.run_directory import complete_checkpoints, find_latest, read_manifest, step_name
from ms_models.train.config import RunConfig

NO_CHANGE = ("checkpoint.resume", "checkpoint.resume_from", "checkpoint.reshard")


def requested(config: RunConfig, *, resume: bool, resume_from: str | None, reshard: bool) -> RunConfig:
    """The configuration with what the command line says about resuming.

    Raises:
        UserError: there is something to cut anew, but nothing is resumed.
    """
    section = config.checkpoint
    section = replace(
        section,
        resume=section.resume or resume,
        resume_from=section.resume_from if resume_from is None else resume_from,
        reshard=section.reshard or reshard,
    )
    if section.reshard and not section.is_resumed:
        raise UserError("checkpoint.reshard is for runs that go on: add --resume, or leave --reshard out")
    return replace(config, checkpoint=section)


def check_resume(config: RunConfig, data: PreparedData | None) -> tuple[Path, list[str]]:
    """The checkpoint to go on from, whole and of this run.

    Returns:
        Its directory, and a line for each thing that differs from the run so far.

    Raises:
        UserError: there is none, it is damaged, or layout, data or seed differ.
    """
    run, name = Path(config.output.directory), config.checkpoint.resume_from
    directory = find_latest(run) if name is None else chosen(run, name)
    try:
        manifest = read_manifest(directory)
    except UserError as error:
        raise UserError(f"{error}; {way_back(directory)}") from error
    lines = _layout_lines(directory, manifest.layout, config)
    verify(directory, manifest)
    if data is not None:  # batches of converted code are compared by the ranks, which can call it
        TrainingLoader.check_state(manifest.training["data"], data, config.train.seed)
    step = manifest.training["step"]
    if step >= config.train.steps:
        raise UserError(f"{directory}: the run is complete, train.steps is {config.train.steps}; raise it to go on")
    before, now = _flat(manifest.training["config"]), _flat(config.to_dict())
    changed = [name for name in now if name in before and before[name] != now[name] and name not in NO_CHANGE]
    lines += [f"changed since {step_name(step)}: {name} {before[name]} -> {now[name]}" for name in changed]
    if later := [found for number, found in complete_checkpoints(run) if number > step]:
        names = ", ".join(one.name for one in later)
        kept = ", ".join(aside_name(one, ABANDONED) for one in later)
        fate = "replaced when the run passes there again" if name is None else f"kept as {kept}"
        lines.append(f"going back to {step_name(step)}: {names} will be {fate}")
    return directory, lines


def _layout_lines(directory: Path, stored: ParallelLayout, config: RunConfig) -> list[str]:
    wanted = config.layout
    if stored == wanted:
        return []
    if not config.checkpoint.reshard:
        raise UserError(
            f"{directory}: was saved with layout {stored}, the run has {wanted}; add --reshard to cut it anew, or "
            "restore the layout"
        )
    lines = [f"reshard: {directory.name} of layout {stored} is cut anew for {wanted}; no value changes"]
    old, new = stored.world_size, wanted.world_size
    if new > old:
        lines.append(f"reshard: ranks 0..{old - 1} keep their random streams, ranks {old}..{new - 1} begin new ones")
    elif new < old:
        lines.append(f"reshard: ranks 0..{new - 1} keep their random streams, those of {new}..{old - 1} end")
    return lines


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    result: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            result |= _flat(value, f"{prefix}{name}.")
        else:
            result[prefix + name] = list(value) if isinstance(value, tuple) else value
    return result
