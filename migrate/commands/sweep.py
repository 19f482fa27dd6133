"""`msmigrate sweep`."""

from __future__ import annotations

import json as text
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from mappings.errors import UserError
from migrate.commands.options import File


def sweep(
    config: Annotated[Path, File],
    out: Annotated[Path, typer.Option("-o", "--out", help="New directory for the trials and sweep.json.")],
    micro: Annotated[str | None, typer.Option(help="Micro-batch sizes, e.g. 1,2,4; by default powers of two.")] = None,
    seq_length: Annotated[str | None, typer.Option(help="Sequence lengths, e.g. 512,1024; for data from text.")] = None,
    steps: Annotated[int, typer.Option(min=2, help="Steps of each trial; the first one compiles.")] = 5,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="Override a field, e.g. --set train.jit=false. Repeatable.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON, nothing else.")] = False,
) -> None:
    """Try micro-batch sizes and sequence lengths: tokens per second and memory, at the same global batch."""
    from ms_models.train import sweep as body

    trials = body.sweep(
        config,
        out,
        overrides or [],
        micro=_numbers("--micro", micro),
        lengths=_numbers("--seq-length", seq_length),
        steps=steps,
        say=lambda line: typer.echo(line, err=True),
    )
    typer.echo(text.dumps([asdict(trial) for trial in trials]) if json else "\n".join(body.table(trials)))
    raise typer.Exit(0 if any(trial.failure is None for trial in trials) else 1)


def _numbers(option: str, given: str | None) -> list[int] | None:
    if given is None:
        return None
    try:
        return [int(part) for part in given.split(",")]
    except ValueError as error:
        raise UserError(f"{option} {given}: must be whole numbers, as in 1,2,4") from error
