"""`msmigrate report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    inputs: Annotated[list[str], typer.Argument(help="Report JSON, run directories, or NAME=losses.jsonl.")],
    out: Annotated[Path, typer.Option("-o", "--out", help="HTML file to write.")],
    title: Annotated[str, typer.Option(help="Title of the page.")] = "msmigrate",
) -> None:
    """Put reports and loss curves on one HTML page."""
    from migrate.report import command

    typer.echo(command.report(inputs, out, title=title))
