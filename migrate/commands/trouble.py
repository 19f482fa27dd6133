"""`msmigrate trouble`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mappings.errors import UserError
from migrate.commands.options import Json, ReportFile, finish


def trouble(
    run: Annotated[Path | None, typer.Argument(exists=True, file_okay=False, help="Run directory.")] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print docs/trouble.md.")] = False,
    json: Json = False,
    report: ReportFile = None,
) -> None:
    """Say what is wrong with a training run: symptom, evidence from the run, cause, remedy."""
    from migrate.trouble import register

    if markdown:
        typer.echo(register.markdown(), nl=False)
        return
    if run is None:
        raise UserError("trouble: give a run directory, or --markdown for the table")
    finish(register.trouble(run), json, report)
