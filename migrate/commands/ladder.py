"""`msmigrate ladder`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mappings.errors import UserError
from migrate.commands.options import File, Force, Json, ReportFile, finish


def ladder(
    config: Annotated[Path, File],
    rungs: Annotated[str, typer.Option(help="Ranks of each rung: dp is added first, then tp, then pp.")] = "1,2,4,8",
    steps: Annotated[int, typer.Option(min=1, help="Steps of each rung.")] = 20,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="Override a field, e.g. --set train.jit=false. Repeatable.")
    ] = None,
    nnodes: Annotated[int | None, typer.Option(min=1, help="Machines of the largest rung.")] = None,
    node_rank: Annotated[int | None, typer.Option(min=0, help="Which of them this is, from 0.")] = None,
    master: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Of machine 0.")] = None,
    html: Annotated[Path | None, typer.Option("--html", help="Also write an HTML page with the curves.")] = None,
    force: Force = False,
    json: Json = False,
    report: ReportFile = None,
) -> None:
    """Run the same training on 1, 2, 4, 8 ranks; compare curves and speed; name the first rung that deviates."""
    from migrate.ladder import command
    from migrate.report.html import render

    try:
        sizes = [int(text) for text in rungs.split(",")]
    except ValueError as error:
        raise UserError(f"--rungs {rungs}: must be whole numbers, as in 1,2,4,8") from error
    result = command.ladder(
        config,
        sizes=sizes,
        steps=steps,
        overrides=overrides or [],
        machines=command.check_machines(nnodes, node_rank, master, sizes[-1]),
        force=force,
        say=lambda line: typer.echo(line, err=True),
    )
    if html is not None:
        render([result], html, title=f"ladder {config.name}")
    finish(result, json, report, rows=True)
