"""`msmigrate data`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from migrate.commands.options import Json, print_facts

TEXT = "Text, JSON lines, Parquet or Arrow files (also .gz, .zst), or directories; `stdlib` is Python's own source."
PACKING = "concatenate, document (no document sees another), fit (whole documents) or pad (one a row, for encoders)."
OVER_LONG = "What becomes of a document longer than a row: split, truncate or drop."


def data(
    text: Annotated[list[str] | None, typer.Argument(help=TEXT)] = None,
    tokenizer: Annotated[Path | None, typer.Option(exists=True, file_okay=False, help="Has tokenizer.json.")] = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Directory to write the MindRecord shards to.")
    ] = None,
    seq_length: Annotated[int, typer.Option(min=2, help="Tokens per sequence.")] = 1024,
    packing: Annotated[str, typer.Option(help=PACKING)] = "concatenate",
    boundary_loss: Annotated[bool, typer.Option(help="Learn a document's first token from the one before it.")] = True,
    over_long: Annotated[str, typer.Option(help=OVER_LONG)] = "split",
    min_length: Annotated[int, typer.Option(min=1, help="Leave out documents of fewer tokens.")] = 1,
    validation_fraction: Annotated[
        float | None, typer.Option(min=0.0, max=0.5, help="Share of documents held out; 0.02 without --validation.")
    ] = None,
    validation: Annotated[list[str] | None, typer.Option(help="Text that is held out as a whole.")] = None,
    max_bytes: Annotated[int | None, typer.Option(min=1, help="Stop once this much text was taken.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Stop once there are this many to train on.")] = None,
    field: Annotated[str, typer.Option(help="Name of the text in records; column of tables.")] = "text",
    text_unit: Annotated[str, typer.Option(help="A document of a text file: the whole file, or each line.")] = "file",
    skip_null: Annotated[bool, typer.Option(help="Leave out records whose text is null.")] = False,
    shard_mib: Annotated[int, typer.Option(min=1, help="Size of a MindRecord shard, in MiB of rows.")] = 512,
    processes: Annotated[
        int | None, typer.Option(min=1, help="Processes that tokenize; by default 0.7 of the cores.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the split and of the order of documents.")] = 0,
    fresh: Annotated[bool, typer.Option(help="Begin anew where a preparation was interrupted.")] = False,
    histogram: Annotated[Path | None, typer.Option(help="Draw the lengths of documents: a .png, .svg or .pdf.")] = None,
    verify: Annotated[
        Path | None, typer.Option(exists=True, file_okay=False, help="Check hashes of prepared data.")
    ] = None,
    show: Annotated[Path | None, typer.Option(exists=True, file_okay=False, help="Show rows of prepared data.")] = None,
    rows: Annotated[int, typer.Option(min=1, help="How many rows to show.")] = 3,
    split: Annotated[str, typer.Option(help="Of which split: train or validation.")] = "train",
    json: Json = False,
) -> None:
    """Tokenize text into MindRecord shards of packed sequences, or look at such shards (--verify, --show)."""
    from mappings.errors import UserError
    from migrate.commands.data_output import print_rows, print_summary

    if verify is not None:
        _verify(verify, json)
    if show is not None:
        from ms_models.data import inspection

        print_rows(inspection.show(show, rows, split=split, tokenizer=tokenizer), json)
        _histogram(show, histogram)
    if verify is not None or show is not None:
        if text:
            raise UserError("data: --verify and --show look at prepared data; give no text with them")
        return
    if not text or tokenizer is None or out is None:
        raise UserError("data: give text, --tokenizer and --out; or --verify or --show with a directory made before")
    from migrate.progress import shown
    from ms_models.data import prepare as body
    from ms_models.data.recipe import Recipe
    from ms_models.data.records import PreparedData

    choices: dict[str, Any] = {"packing": packing, "over_long": over_long, "text_unit": text_unit}
    recipe = Recipe(
        text=tuple(text),
        seq_length=seq_length,
        validation_text=tuple(validation or ()),
        boundary_loss=boundary_loss,
        min_length=min_length,
        validation_fraction=validation_fraction,
        shard_bytes=shard_mib << 20,
        seed=seed,
        field=field,
        skip_null=skip_null,
        max_bytes=max_bytes,
        max_tokens=max_tokens,
        **choices,
    )
    facts = body.prepare(recipe, tokenizer, out, processes=processes, fresh=fresh, track=shown, say=_tell)
    made = PreparedData.read(out)
    print_summary(facts, made.documents, made.sources, json)
    _histogram(out, histogram)


def _verify(directory: Path, json: bool) -> None:
    from ms_models.data import inspection

    figures, wrong = inspection.verify(directory)
    print_facts(figures, json)
    for line in wrong:
        typer.echo(line, err=True)
    if wrong:
        raise typer.Exit(1)


def _histogram(directory: Path, path: Path | None) -> None:
    if path is None:
        return
    from ms_models.data.length_plot import plot_lengths
    from ms_models.data.records import PreparedData

    plot_lengths(PreparedData.read(directory), path)


def _tell(line: str) -> None:
    typer.echo(line, err=True)
