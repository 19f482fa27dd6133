"""`msmigrate weights`: options in, one call into `migrate.weights`, a report out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from migrate.cli_options import Directory, Force, Json, ReportFile, finish

weights = typer.Typer(no_args_is_help=True, help="Convert, export, verify and inspect checkpoints.")


@weights.command("convert")
def weights_convert(
    source: Annotated[Path, Directory],
    out: Annotated[Path, typer.Option("-o", "--out", help="Directory to write the sharded checkpoint to.")],
    tp: Annotated[int, typer.Option(min=1, help="Tensor-parallel ranks.")] = 1,
    dp: Annotated[int, typer.Option(min=1, help="Data-parallel ranks (they share files).")] = 1,
    vocab_multiple: Annotated[int, typer.Option(min=1, help="Pad the vocabulary to a multiple of this times tp.")] = 1,
    memory_budget: Annotated[int, typer.Option(min=1, help="Memory to stay within, in MiB.")] = 1024,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and write nothing.")] = False,
    force: Force = False,
    json: Json = False,
    report: ReportFile = None,
) -> None:
    """Cut a Hugging Face directory into per-rank files."""
    from mappings.layout import ParallelLayout
    from migrate.progress import shown
    from migrate.weights import command

    layout = ParallelLayout(tp=tp, dp=dp, vocab_multiple=vocab_multiple)
    result = command.convert(
        source, out, layout=layout, force=force, dry_run=dry_run, memory_budget=memory_budget << 20, track=shown
    )
    finish(result, json, report)


@weights.command("export")
def weights_export(
    source: Annotated[Path, Directory],
    out: Annotated[Path, typer.Option("-o", "--out", help="Hugging Face directory to write.")],
    force: Force = False,
    json: Json = False,
    report: ReportFile = None,
) -> None:
    """Turn a sharded checkpoint (converted, or saved by a run) back into a Hugging Face directory."""
    from migrate.progress import shown
    from migrate.weights import command

    finish(command.export(source, out, force=force, track=shown), json, report)


@weights.command("verify")
def weights_verify(
    directory: Annotated[Path, Directory],
    source: Annotated[
        Path | None, typer.Option(exists=True, file_okay=False, help="Original to derive every tensor from again.")
    ] = None,
    json: Json = False,
    report: ReportFile = None,
) -> None:
    """Check a converted or exported directory: hashes, and with --source every byte."""
    from migrate.progress import shown
    from migrate.weights import command

    finish(command.verify(directory, source=source, track=shown), json, report)


@weights.command("inspect")
def weights_inspect(
    path: Annotated[Path, typer.Argument(exists=True)], json: Json = False, report: ReportFile = None
) -> None:
    """List names, shapes, dtypes, sizes and NaN/Inf counts of a checkpoint or one file."""
    from migrate.progress import shown
    from migrate.weights import command

    finish(command.inspect(path, track=shown), json, report, rows=True)
