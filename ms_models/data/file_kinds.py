"""`Kind`: what a file of text is, by its name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

JSON_LINES = (".jsonl", ".ndjson", ".json")
PARQUET = (".parquet", ".pq")
ARROW = (".arrow", ".feather", ".ipc")
COMPRESSED = (".gz", ".zst")


@dataclass(frozen=True)
class Kind:
    """Format and compression of a file."""

    format: Literal["text", "lines", "json", "parquet", "arrow"]
    """`text`: one document; `lines`: a document a line; `json`: a record a line."""
    compression: Literal["", "gz", "zst"] = ""

    @property
    def is_table(self) -> bool:
        """Whether it has rows and columns, and needs pyarrow."""
        return self.format in ("parquet", "arrow")

    @property
    def is_divisible(self) -> bool:
        """Whether several processes can each read a range of its bytes."""
        return self.format in ("lines", "json") and not self.compression


def kind_of(path: Path, text_unit: str = "file") -> Kind:
    """The kind of a file by its suffixes; what is not known is text.

    Args:
        path: the file.
        text_unit: `file` or `line`: what a document of a plain text file is.
    """
    name, compression = path.name.lower(), ""
    if name.endswith(COMPRESSED):
        name, _, compression = name.rpartition(".")
    if name.endswith(JSON_LINES):
        return Kind("json", compression)  # type: ignore[arg-type]
    if not compression and name.endswith(PARQUET):
        return Kind("parquet")
    if not compression and name.endswith(ARROW):
        return Kind("arrow")
    return Kind("lines" if text_unit == "line" else "text", compression)  # type: ignore[arg-type]
