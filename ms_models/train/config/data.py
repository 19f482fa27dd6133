"""Section `data`: prepared data, a blend of it, or the text to prepare."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mappings.errors import UserError
from ms_models.data.recipe import SUFFIXES, OverLong, Packing, Recipe, TextUnit
from ms_models.train.config.bounds import number

EITHER = "give one of 'data.path' (prepared data), 'data.blend' (several of it) and 'data.text' (text to prepare)"


@dataclass(frozen=True)
class BlendPart:
    """One of several sources of training data."""

    path: str
    """Directory made by `msmigrate data`."""
    weight: float = number(above=0)
    """Share of the training rows that come from it, relative to the sum of the weights."""


@dataclass(frozen=True)
class DataConfig:
    """Prepared data, or the text to prepare into `<output>/data` when the run starts.

    The fields from `tokenizer` on, up to `max_tokens`, are those of `ms_models.data.recipe.Recipe`, for `text`.
    """

    path: str | None = None
    """Directory made by `msmigrate data`."""
    blend: tuple[BlendPart, ...] = ()
    """Several directories, read in turn by their weights."""
    text: tuple[str, ...] = ()
    """Sources of text; `stdlib` is the source of Python's own library."""
    tokenizer: str | None = None
    """Directory with tokenizer.json; None takes the model's."""
    seq_length: int | None = number(None, least=2)
    """Tokens per sequence; required with `text`, checked against the data otherwise."""
    validation_text: tuple[str, ...] = ()
    """Sources that go into the validation split as a whole."""
    validation_fraction: float | None = number(None, least=0, below=1)
    """Share of the documents of `text` held out; None takes 0.02, or 0 with `validation_text`."""
    packing: Packing = "concatenate"
    """How documents are put into rows: concatenate, document, fit or pad."""
    boundary_loss: bool = True
    """Whether the first token of a document is learned from the end of the one before it in its row."""
    over_long: OverLong = "split"
    """What becomes of a document longer than a row: split, truncate or drop."""
    min_length: int = number(1, least=1)
    """Tokens below which a document is left out."""
    suffixes: tuple[str, ...] = SUFFIXES
    """Of the files taken from a directory."""
    text_unit: TextUnit = "file"
    """Whether a plain text file is one document, or each of its lines is."""
    skip_null: bool = False
    """Whether records whose text is null are left out; otherwise they are errors."""
    seed: int = number(0, least=0)
    """Seed of the order of documents and of the split."""
    processes: int | None = number(None, least=1)
    """Processes that tokenize; None takes 0.7 of the cores, and at least 2 where there are as many."""
    shard_mib: int = number(512, least=1)
    """Size of a shard, MiB of rows."""
    max_bytes: int | None = number(None, least=1)
    """Bytes of text to take; None takes all."""
    max_tokens: int | None = number(None, least=1)
    """Tokens of the training split after which no further document is taken; None takes all."""
    field: str = "text"
    """Name of the text in JSON-lines records; column of Parquet and Arrow files."""
    max_epochs: float | None = number(None, above=0)
    """How often a source may be read; a run that would read one oftener is refused. None allows any number."""
    prefetch: int = number(2, least=0, most=64)
    """Steps whose batches are read ahead by a thread; 0 reads each when it is needed."""

    @property
    def is_given(self) -> bool:
        """Whether the section names data."""
        return self.path is not None or bool(self.blend) or bool(self.text)

    def __post_init__(self) -> None:
        if (self.path is not None) + bool(self.blend) + bool(self.text) > 1:
            raise UserError(f"config: {EITHER}")
        if self.text and self.seq_length is None:
            raise UserError("config: 'data.seq_length' is missing; 'data.text' needs it")

    def recipe(self) -> Recipe:
        """What to make of `text`.

        Raises:
            UserError: a field is out of its range.
        """
        assert self.seq_length is not None
        return Recipe(
            text=self.text, seq_length=self.seq_length, validation_text=self.validation_text, packing=self.packing,
            boundary_loss=self.boundary_loss, over_long=self.over_long, min_length=self.min_length,
            suffixes=self.suffixes, field=self.field, text_unit=self.text_unit, skip_null=self.skip_null,
            validation_fraction=self.validation_fraction, shard_bytes=self.shard_mib << 20, seed=self.seed,
            max_bytes=self.max_bytes, max_tokens=self.max_tokens,
        )  # fmt: skip

    def parts(self, directory: Path) -> tuple[tuple[Path, float], ...]:
        """Directories and weights to train from; `directory` is that of `path`, or of the text once it is prepared."""
        if self.blend:
            return tuple((Path(part.path), part.weight) for part in self.blend)
        return ((directory, 1.0),)
