"""Looks at prepared data: whether its bytes are what was written, and what its rows say."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mappings.errors import UserError
from mappings.formats.manifest import hash_file
from ms_models.data.records import TRAIN, PreparedData
from ms_models.data.row_reader import RowReader
from ms_models.data.rows import IGNORED
from ms_models.data.tokenization import FILE, load_tokenizer, read_tokenizer


def verify(directory: Path) -> tuple[dict[str, Any], list[str]]:
    """Hashes every shard.

    Returns:
        Figures, and a line for each file that is not what `data.json` says.

    Raises:
        UserError: no prepared data there, or a shard is missing or cut short.
    """
    data = PreparedData.read(directory)
    wrong, size = [], 0
    for split in data.splits.values():
        for name, record in split.files.items():
            found = hash_file(directory / name)
            size += found.bytes
            if found.sha256 != record.sha256:
                wrong.append(f"{directory / name}: its bytes have changed; prepare the data again")
    figures = {
        "files": sum(len(split.files) for split in data.splits.values()),
        "bytes": size,
        "changed": len(wrong),
        **{f"{name}_sequences": split.rows for name, split in data.splits.items()},
        **{f"{name}_tokens": split.tokens for name, split in data.splits.items()},
    }
    return figures, wrong


@dataclass(frozen=True)
class Passage:
    """A document, or the part of it, within a row."""

    start: int
    stop: int
    """Positions."""
    labelled: int
    """Positions of it that have a label."""
    text: str


@dataclass(frozen=True)
class ShownRow:
    """A row as it can be read."""

    number: int
    passages: list[Passage]
    padding: int


def show(directory: Path, rows: int, *, split: str = TRAIN, tokenizer: Path | None = None) -> Iterator[ShownRow]:
    """The first rows of a split, decoded, divided where documents end.

    Args:
        directory: prepared data.
        rows: how many.
        split: of which split.
        tokenizer: directory of the tokenizer; None takes where it was when the data was prepared.

    Raises:
        UserError: the tokenizer is not there or another one.
    """
    data = PreparedData.read(directory)
    if split not in data.splits:
        raise UserError(f"{directory}: has no split {split!r}; it has {', '.join(data.splits)}")
    if tokenizer is None and "directory" not in data.tokenizer:
        raise UserError(f"{directory}: does not say where its tokenizer is; give --tokenizer")
    home = Path(data.tokenizer["directory"]) if tokenizer is None else tokenizer
    if not (home / FILE).is_file():
        raise UserError(f"{home}: no {FILE} there (any more); give --tokenizer")
    facts, loaded = read_tokenizer(home), load_tokenizer(home)
    if facts.sha256 != data.tokenizer["sha256"]:
        raise UserError(f"{home / FILE}: is not the tokenizer that {directory} was prepared with; give --tokenizer")
    numbers = np.arange(min(rows, data.splits[split].rows))
    reader = RowReader([directory], [data.splits[split]])
    for number, batch in enumerate(reader.batches(np.zeros(len(numbers), np.int64), numbers, 1)):
        ids, mask, labels = (batch[name][0] for name in ("input_ids", "attention_mask", "labels"))
        kept = int(np.count_nonzero(mask))
        passages = [
            Passage(
                start,
                stop,
                int((labels[start:stop] != IGNORED).sum()),
                loaded.decode(ids[start:stop].tolist(), skip_special_tokens=False),
            )
            for start, stop in _borders(ids[:kept], mask[:kept], facts.eos, data)
        ]
        yield ShownRow(number, passages, len(ids) - kept)


def _borders(ids: np.ndarray, mask: np.ndarray, eos: int, data: PreparedData) -> Iterator[tuple[int, int]]:
    if data.isolates:
        ends = np.flatnonzero(np.diff(mask)) + 1
    elif data.packing == "pad":
        ends = np.zeros(0, np.int64)
    else:
        ends = np.flatnonzero(ids[:-1] == eos) + 1
    borders = [0, *ends.tolist(), len(ids)]
    yield from itertools.pairwise(borders)
