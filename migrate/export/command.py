"""`msmigrate export`: one command from a run to what others load."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mappings.errors import UserError
from mappings.families import family_for_config
from mappings.formats.hf_directory import read_config
from migrate.export.origin import Origin, find_origin
from migrate.export.run_yaml import NAME, RunYaml
from migrate.report import Finding, Report, Severity
from migrate.weights import command as weights
from migrate.weights.destinations import Destination

HF, MINDSPORE_TRANSFORMERS = "hf", "mindspore-transformers"
TARGETS = (HF, MINDSPORE_TRANSFORMERS)
SPELLING = "mindformers"
CONTAINER = "iteration"
FOLDER = "checkpoint"
"""Of the weights, in the output for MindSpore Transformers."""


def export(
    source: Path,
    out: Path,
    *,
    target: str,
    optimizer: bool = False,
    dtype: str | None = None,
    **options: Any,
) -> Report:
    """Writes the newest checkpoint of a run, or any checkpoint, for another toolkit.

    Args:
        source: run directory, checkpoint, or model directory.
        out: directory to make.
        target: one of `TARGETS`.
        optimizer: also the moments, for a run that goes on there; `mindspore-transformers` only.
        dtype: of the weights, a safetensors name; None keeps them as they are (a run's are F32).
        options: fields of `migrate.weights.conversion.Request`.

    Raises:
        UserError: no such checkpoint, an option that the target has no use for, or as `weights convert`.
    """
    if target not in TARGETS:
        raise UserError(f"--for is {target!r}; known are {', '.join(TARGETS)}")
    if optimizer and target == HF:
        raise UserError("--optimizer is for mindspore-transformers; Hugging Face directories hold weights only")
    origin = find_origin(source)
    if optimizer and not origin.training:
        raise UserError(f"{source}: no checkpoint of a run, so there are no optimizer states; leave --optimizer out")
    if target == HF:
        report = weights.export(origin.directory, out, cast=dtype, **options)
    else:
        report = _mindspore_transformers(origin, out, optimizer=optimizer, dtype=dtype, **options)
    report.command = "export"
    report.facts["checkpoint"] = str(origin.directory)
    return report


def _mindspore_transformers(origin: Origin, out: Path, *, optimizer: bool, dtype: str | None, **options: Any) -> Report:
    raw = read_config(origin.directory)
    family = family_for_config(raw, str(origin.directory / "config.json"))
    if (out / NAME).exists() and not options.get("force"):
        raise UserError(f"{out / NAME}: exists; choose another directory, or replace it with --force")
    # Whole tensors with their metadata: MindSpore Transformers cuts them for any layout when it loads.
    destination = Destination(CONTAINER, spelling=SPELLING, step=origin.step)
    report = weights.convert(
        origin.directory, out / FOLDER, destination=destination, cast=dtype, weights_only=not optimizer, **options
    )
    if not (out / FOLDER).is_dir():
        return report  # its findings say why nothing was written
    length = origin.seq_length
    yaml = RunYaml(
        family, raw, origin.config, seq_length=length, checkpoint=(out / FOLDER).absolute(), has_states=optimizer
    )
    (out / NAME).write_text(yaml.text(), encoding="utf-8")
    report.facts["run configuration"] = str(out / NAME)
    why, fix = "MindSpore Transformers has models and choices of its own.", f"Look at {NAME} before starting."
    report.findings += [Finding("E101", Severity.NOTE, note, why, fix) for note in yaml.notes]
    return report
