"""What `msmigrate data` shows."""

from __future__ import annotations

import dataclasses
import json as json_module
from collections.abc import Iterable, Mapping
from typing import Any

import typer

from migrate.commands.options import print_facts

BAR = 40
"""Characters of the longest bar."""
SHOWN = 70
"""Characters of the beginning and of the end of a passage."""
NAMED = 5
"""Longest documents that are named."""


def print_summary(
    facts: Mapping[str, Any], documents: Mapping[str, Any], sources: list[dict[str, Any]], json: bool
) -> None:
    """The figures of prepared data, what each source gave, and the lengths of documents as bars."""
    lengths = documents.get("lengths", {})
    if json:
        print_facts({**facts, "sources": sources, "longest": lengths.get("longest", [])}, json)
        return
    print_facts({name: value for name, value in facts.items() if not isinstance(value, dict)}, json)
    if len(sources) > 1 and all("tokens" in source for source in sources):
        typer.echo("tokens by source (train, validation):")
        for source in sources:
            typer.echo(f"  {source['name']}: {source['tokens']['train']:,} {source['tokens']['validation']:,}")
    counts = documents.get("length_histogram", {})
    if counts:
        typer.echo("documents by tokens:")
    for name, count in counts.items():
        bar = "#" * -(-BAR * count // max(counts.values()))
        typer.echo(f"  {name:>18} {count:>10,} {bar}")
    if lengths.get("longest"):
        typer.echo("longest documents:")
    for length, key in lengths.get("longest", [])[:NAMED]:
        typer.echo(f"  {length:>18,} {key}")


def print_rows(rows: Iterable[Any], json: bool) -> None:
    """Decoded rows with the borders of their documents."""
    if json:
        typer.echo(json_module.dumps([dataclasses.asdict(row) for row in rows], indent=2, ensure_ascii=False))
        return
    for row in rows:
        typer.echo(f"row {row.number}: {len(row.passages)} documents, {row.padding} positions of padding")
        for passage in row.passages:
            text = passage.text
            if len(text) > 2 * SHOWN:
                text = f"{text[:SHOWN]} ... {text[-SHOWN:]}"
            typer.echo(f"  {passage.start:>5}..{passage.stop - 1:<5} {passage.labelled:>5} labels  {text!r}")
