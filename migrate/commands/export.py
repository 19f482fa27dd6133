"""`msmigrate export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from migrate.commands.options import Force, Json, ReportFile, finish


def export(
    source: Annotated[
        Path, typer.Argument(exists=True, file_okay=False, help="Run, checkpoint of a run, or model directory.")
    ],
    out: Annotated[Path, typer.Option("-o", "--out", help="Directory to write.")],
    target: Annotated[str, typer.Option("--for", help="hf or mindspore-transformers.")] = "hf",
    optimizer: Annotated[
        bool, typer.Option("--optimizer", help="With mindspore-transformers: the optimizer's moments, too.")
    ] = False,
    dtype: Annotated[str | None, typer.Option(help="Round weights to F32, BF16 or F16; kept by default.")] = None,
    force: Force = False,
    json: Json = False,
    report: ReportFile = None,
) -> None:
    """Write the newest checkpoint of a run for transformers, or for MindSpore Transformers with a run configuration."""
    from migrate.export import command
    from migrate.progress import shown

    result = command.export(source, out, target=target, optimizer=optimizer, dtype=dtype, force=force, track=shown)
    finish(result, json, report)
