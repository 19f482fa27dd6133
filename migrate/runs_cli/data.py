"""`msmigrate data`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from migrate.cli_options import Json, print_facts


def data(
    text: Annotated[list[str], typer.Argument(help="Text files or directories; `stdlib` is Python's own source.")],
    tokenizer: Annotated[Path, typer.Option(exists=True, file_okay=False, help="Directory with tokenizer.json.")],
    out: Annotated[Path, typer.Option("-o", "--out", help="Directory to write the MindRecord shards to.")],
    seq_length: Annotated[int, typer.Option(min=2, help="Tokens per sequence.")] = 1024,
    validation_fraction: Annotated[float, typer.Option(min=0.0, max=0.5, help="Share of documents held out.")] = 0.02,
    max_bytes: Annotated[int | None, typer.Option(min=1, help="Stop once this much text was taken.")] = None,
    field: Annotated[str, typer.Option(help="Name of the text in JSON-lines records.")] = "text",
    shard_mib: Annotated[int, typer.Option(min=1, help="Size of a MindRecord shard, in MiB of tokens.")] = 512,
    processes: Annotated[int, typer.Option(min=1, help="Processes that tokenize.")] = 2,
    seed: Annotated[int, typer.Option(help="Seed of the split and of the order of documents.")] = 0,
    json: Json = False,
) -> None:
    """Tokenize text into MindRecord shards of packed sequences."""
    from migrate.progress import shown
    from ms_models.data import prepare as body
    from ms_models.data.recipe import Recipe

    recipe = Recipe(
        text=tuple(text),
        seq_length=seq_length,
        validation_fraction=validation_fraction,
        shard_bytes=shard_mib << 20,
        seed=seed,
        field=field,
        max_bytes=max_bytes,
    )
    print_facts(body.prepare(recipe, tokenizer, out, processes=processes, track=shown), json)
