"""`msmigrate vocab`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from migrate.commands.options import Directory, Json, ReportFile, finish


class NewRowsKind(StrEnum):
    """Values of new rows."""

    MEAN, NORMAL, ZERO = "mean", "normal", "zero"


def vocab(
    model_dir: Annotated[Path, Directory],
    out: Annotated[Path, typer.Option("-o", "--out", help="Directory to write.")],
    rows: Annotated[
        int | None, typer.Option(min=1, help="Vocabulary rows; what the tokenizer needs by default.")
    ] = None,
    multiple: Annotated[int, typer.Option(min=1, help="Raise the number to a multiple of this.")] = 1,
    new: Annotated[NewRowsKind, typer.Option(help="Values of new rows.")] = NewRowsKind.MEAN,
    seed: Annotated[int, typer.Option(min=0, help="Of --new normal.")] = 0,
    json: Json = False,
    report: ReportFile = None,
) -> None:
    """Give a checkpoint as many embedding rows as its tokenizer needs: copied, extended or trimmed, verified."""
    from migrate.check.vocab import command
    from migrate.check.vocab.new_rows import NewRows
    from migrate.progress import shown

    made = command.vocab(model_dir, out, rows=rows, multiple=multiple, new_rows=NewRows(new.value, seed), track=shown)
    finish(made, json, report)
