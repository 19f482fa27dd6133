"""`msmigrate profile`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from migrate.commands.options import Directory, Json, ReportFile, finish


def profile(
    run: Annotated[Path, Directory],
    baseline: Annotated[
        Path | None,
        typer.Option(exists=True, file_okay=False, help="Run on fewer ranks, to state the scaling efficiency."),
    ] = None,
    json: Json = False,
    report: ReportFile = None,
) -> None:
    """Say where the time of recorded steps went (train with --profile steps=a:b), and what to do about it."""
    from migrate.profiles import judging

    finish(judging.profile(run, baseline), json, report, rows=True)
