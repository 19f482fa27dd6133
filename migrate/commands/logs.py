"""`msmigrate logs`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mappings.errors import UserError
from migrate.commands.options import Directory

if TYPE_CHECKING:
    from ms_models.train.launch.following import Tail

FOLLOW_S = 0.5


def logs(
    run: Annotated[Path, Directory],
    rank: Annotated[list[int] | None, typer.Option("--rank", min=0, help="Only this rank's lines. Repeatable.")] = None,
    tail: Annotated[int | None, typer.Option(min=1, help="Only the last lines.")] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Go on with what is written; Ctrl-C ends it.")] = False,
) -> None:
    """Show the logs of all ranks of a run, merged by time: each line TIME RANK text."""
    from ms_models.train.checkpoints.run_directory import LOGS
    from ms_models.train.launch.merged_log import merge, parts, rank_of

    folder = run / LOGS
    if not parts(folder):
        raise UserError(f"{run}: holds no merged log; it is written once `msmigrate train` has started processes there")
    wanted = _wanted(rank, rank_of)
    followed = _tails(folder) if follow else None  # before what is there is shown, so that nothing falls between
    lines = wanted(merge(folder))
    for line in lines if tail is None else lines[-tail:]:
        typer.echo(line)
    while followed is not None:
        for one in followed:
            for line in wanted(one.lines()):
                typer.echo(line)
        time.sleep(FOLLOW_S)


def _tails(folder: Path) -> list[Tail]:
    from ms_models.train.launch.following import Tail
    from ms_models.train.launch.merged_log import parts

    return [Tail(path, from_end=True) for path in parts(folder)]


def _wanted(ranks: list[int] | None, rank_of: Callable[[str], int | None]) -> Callable[[Iterable[str]], list[str]]:
    return lambda lines: [line for line in lines if not ranks or rank_of(line) in ranks]
