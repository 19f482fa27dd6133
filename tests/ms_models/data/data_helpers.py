"""Corpora of numbered words, and rows read back by the sequential reader, which the loader does not use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from mindspore.mindrecord import FileReader

from ms_models.data.documents import Document, find_spans
from ms_models.data.reading import ReadingOptions, read_documents, tasks
from tests.ms_models.train.run_helpers import WORDS


def words(*ids: int) -> str:
    """The text whose tokens are `ids`."""
    return " ".join(f"w{i}" for i in ids)


def random_texts(count: int, longest: int = 40, seed: int = 0) -> list[str]:
    """Texts of 1 to `longest` words."""
    rng = np.random.default_rng(seed)
    return [words(*rng.integers(0, WORDS, rng.integers(1, longest + 1))) for _ in range(count)]


def rows(directory: Path, split: str) -> list[dict[str, np.ndarray]]:
    """Every row of a split, in the order of the shards."""
    found: list[dict[str, np.ndarray]] = []
    for path in sorted(directory.glob(f"{split}-*.mindrecord")):
        reader = FileReader(str(path))
        found += list(reader.get_next())
        reader.close()
    return found


def kept_tokens(found: list[dict[str, np.ndarray]]) -> list[int]:
    """Tokens that are not padding."""
    return [int(t) for row in found for t, keep in zip(row["input_ids"], row["attention_mask"], strict=True) if keep]


def contents(directory: Path) -> dict[str, bytes]:
    """Name and bytes of every file."""
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


def read_all(sources: list[Any], **options: Any) -> list[Document]:
    """Every document of a corpus, task by task."""
    chosen = ReadingOptions(**options)
    settings = {"field": chosen.field, "text_unit": chosen.text_unit}
    suffixes = (".txt", ".jsonl", ".parquet", ".arrow", ".feather", ".jsonl.gz", ".jsonl.zst")
    spans = find_spans(sources, suffixes, 0, **settings)
    return [d for span in spans for task in tasks(span, chosen.text_unit) for d in read_documents(task, chosen)]
