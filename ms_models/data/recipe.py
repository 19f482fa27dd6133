"""`Recipe`: everything that decides the bytes of prepared data, beside the text and the tokenizer themselves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

from mappings.errors import UserError

Packing = Literal["concatenate", "document", "fit", "pad"]
OverLong = Literal["split", "truncate", "drop"]
TextUnit = Literal["file", "line"]
SUFFIXES = (
    ".txt", ".md", ".py", ".jsonl", ".ndjson", ".parquet", ".arrow", ".feather",
    ".txt.gz", ".jsonl.gz", ".json.gz", ".txt.zst", ".jsonl.zst", ".json.zst",
)  # fmt: skip
SHARD_BYTES = 512 << 20
VALIDATION_FRACTION = 0.02
ISOLATING = ("document", "fit")
"""Kinds of packing whose documents must not see each other."""


@dataclass(frozen=True)
class Recipe:
    """How text becomes rows. The same recipe, text and tokenizer give the same bytes."""

    text: tuple[str, ...]
    """Files, directories, or `stdlib` for the source of Python's own library."""
    seq_length: int
    """Tokens per row."""
    validation_text: tuple[str, ...] = ()
    """Sources that go into the validation split as a whole."""
    packing: Packing = "concatenate"
    """`concatenate`: document, end of text, next document, regardless of row borders. `document`: the same rows, but
    with document numbers as the attention mask, so that no document sees another. `fit`: whole documents in the row
    where they leave the least room, numbered likewise. `pad`: one document a row, with the tokenizer's own special
    tokens, for encoders."""
    boundary_loss: bool = True
    """Whether the first token of a document that follows another one in its row is learned from that one. Documents
    that do not see each other never do."""
    over_long: OverLong = "split"
    """What becomes of a document that does not fit into a row with its end token."""
    min_length: int = 1
    """Tokens below which a document is left out."""
    suffixes: tuple[str, ...] = SUFFIXES
    """Of the files taken from a directory."""
    field: str = "text"
    """Of the text in a JSON-lines record; column of a table."""
    text_unit: TextUnit = "file"
    """What one document of a plain text file is; empty lines are none."""
    skip_null: bool = False
    """Whether records whose text is null are left out and counted; otherwise they are errors."""
    validation_fraction: float | None = None
    """Share of the documents of `text` held out, in [0, 1). None: 0.02, or 0 with `validation_text`."""
    shard_bytes: int = SHARD_BYTES
    """Size of a shard, counted in its rows' bytes."""
    seed: int = 0
    """Of the order of documents and of the split."""
    max_bytes: int | None = None
    """Bytes of text to take; None takes all."""
    max_tokens: int | None = None
    """Tokens of the training split after which no further document is taken; None takes all."""

    def __post_init__(self) -> None:
        if not self.text:
            raise UserError("data: no text given")
        for name, kinds in (("packing", Packing), ("over_long", OverLong), ("text_unit", TextUnit)):
            if getattr(self, name) not in get_args(kinds):
                raise UserError(f"{name} must be one of {', '.join(get_args(kinds))}, found {getattr(self, name)!r}")
        for name, least in (("seq_length", 2), ("min_length", 1), ("shard_bytes", 1)):
            if getattr(self, name) < least:
                raise UserError(f"{name} must be at least {least}, found {getattr(self, name)}")
        for name in ("max_bytes", "max_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError(f"{name} must be at least 1, found {value}")
        if not 0 <= self.held_out < 1:
            raise UserError(f"validation_fraction must be at least 0 and below 1, found {self.validation_fraction}")

    @property
    def held_out(self) -> float:
        """Share of the documents of `text` that goes into the validation split."""
        if self.validation_fraction is None:
            return 0.0 if self.validation_text else VALIDATION_FRACTION
        return self.validation_fraction

    @property
    def isolates(self) -> bool:
        """Whether documents of a row must not see each other."""
        return self.packing in ISOLATING

    def to_dict(self) -> dict[str, Any]:
        """As plain data for JSON."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    def differences(self, request: Mapping[str, Any]) -> list[str]:
        """What differs from an earlier recipe's `to_dict`, a text each; empty where both give the same rows.

        Where files may be found and how large shards are is compared by what it led to, not here. Fields that the
        earlier one does not know had their defaults then.
        """
        now, defaults = self.to_dict(), {field.name: field.default for field in fields(self)}
        found = []
        for name in now:
            if name in ("suffixes", "shard_bytes"):
                continue
            before = request.get(name, defaults[name])
            before = list(before) if isinstance(before, tuple) else before
            value = now[name]
            if name == "validation_fraction" and before != value:
                before = VALIDATION_FRACTION if before is None else before
                value = self.held_out
            if before != value:
                found.append(f"{name} was {before}, now it is {value}")
        return found
