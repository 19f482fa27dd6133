"""`msmigrate registry`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from migrate.commands.options import Json, ReportFile, Sarif, finish


def registry(
    repo: Annotated[Path, typer.Argument(exists=True, help="Directory of Python source, or one file.")],
    model: Annotated[
        list[Path] | None, typer.Option(exists=True, file_okay=False, help="Model directory that uses it. Repeatable.")
    ] = None,
    module: Annotated[
        list[str] | None,
        typer.Option("--import", help="Import this module of it, in another process, and record who registers what."),
    ] = None,
    rename: Annotated[str | None, typer.Option(help="OLD=NEW: show the edits that rename a model type.")] = None,
    write: Annotated[bool, typer.Option("--write", help="With --rename: make the edits.")] = False,
    sarif: Sarif = None,
    json: Json = False,
    report: ReportFile = None,
) -> None:
    """Find clashes of model types: who registered a name, whether it is real, how to end it."""
    from migrate.check.registry import command

    if rename is not None:
        diff, count = command.rename(repo, rename, models=model or (), write=write)
        typer.echo(diff, nl=False)
        typer.echo(f"{count} file{'s' if count != 1 else ''} {'changed' if write else 'to change; --write does it'}")
        return
    finish(command.registry(repo, models=model or (), modules=module or ()), json, report, sarif=(sarif, repo))
