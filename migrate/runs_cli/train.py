"""`msmigrate train`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from migrate.cli_options import File


def train(
    config: Annotated[Path, File],
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="Override a field, e.g. --set train.steps=100. Repeatable.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the last checkpoint of the run.")] = False,
    resume_from: Annotated[
        str | None, typer.Option(help="Go on from this checkpoint of the run, e.g. step_00000100.")
    ] = None,
    reshard: Annotated[bool, typer.Option("--reshard", help="Cut the checkpoint anew for the run's layout.")] = False,
    stop_after: Annotated[int | None, typer.Option(min=1, help="Save and stop after this step.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check everything and start nothing.")] = False,
) -> None:
    """Train a model: starts its own processes, one or many."""
    from ms_models.train.launch import starting

    raise typer.Exit(
        starting.launch(
            config,
            overrides or [],
            resume=resume,
            resume_from=resume_from,
            reshard=reshard,
            stop_after=stop_after,
            dry_run=dry_run,
        )
    )
