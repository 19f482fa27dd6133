"""A few rows of prepared data, or a few documents of text, spread over what there is: to be looked at by the checks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy as np

from mappings.errors import UserError
from ms_models.data.documents import Document, find_spans
from ms_models.data.reading import ReadingOptions, read_documents, tasks
from ms_models.data.recipe import SUFFIXES
from ms_models.data.records import TRAIN, PreparedData
from ms_models.data.row_reader import RowReader

PER_SPAN = 16
"""Documents of one unit of reading, so that one large file does not stand for all."""


def sample_rows(directory: Path, count: int, *, split: str = TRAIN) -> dict[str, np.ndarray]:
    """`input_ids`, `attention_mask` and `labels`, `[N, S]` int32 each, of rows at equal distances.

    Args:
        directory: prepared data.
        count: rows to read; fewer where there are fewer.
        split: of which split.

    Raises:
        UserError: it is no prepared data, the split has no rows, or a shard is damaged.
    """
    data = PreparedData.read(directory)
    if split not in data.splits or not (rows := data.splits[split].rows):
        raise UserError(f"{directory}: the split {split!r} has no rows")
    numbers = np.unique(np.linspace(0, rows - 1, min(count, rows)).astype(np.int64))
    reader = RowReader([directory], [data.splits[split]])
    [batch] = reader.batches(np.zeros(len(numbers), np.int64), numbers, len(numbers))
    return batch


def sample_documents(
    sources: Sequence[str | Path], count: int, *, field: str = "text", text_unit: str = "file"
) -> Iterator[Document]:
    """Documents of text, JSON lines or tables, at most 16 of each part of a file.

    Args:
        sources: files, directories, or `stdlib`.
        count: documents to give at most.
        field: name of the text in records; column of tables.
        text_unit: see `find_spans`.

    Raises:
        UserError: nothing is found, or a file is not what its name says, with file and place.
    """
    options = ReadingOptions(field, text_unit, skip_null=True)
    left = count
    for span in find_spans(sources, SUFFIXES, seed=0, field=field, text_unit=text_unit):
        found = (document for task in tasks(span, text_unit) for document in read_documents(task, options))
        for document in islice(found, min(PER_SPAN, left)):
            yield document
            left -= 1
        if not left:
            return
