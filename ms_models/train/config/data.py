"""Section `data`: prepared data, or the text to prepare."""

from __future__ import annotations

from dataclasses import dataclass

from mappings.errors import UserError
from ms_models.train.config.bounds import number

EITHER = "give either 'data.path' (prepared data) or 'data.text' (text to prepare)"


@dataclass(frozen=True)
class DataConfig:
    """Prepared data, or the text to prepare into `<output>/data` when the run starts."""

    path: str | None = None
    """Directory made by `msmigrate data`."""
    text: tuple[str, ...] = ()
    """Sources of text; `stdlib` is the source of Python's own library."""
    tokenizer: str | None = None
    """Directory with tokenizer.json; None takes the model's."""
    seq_length: int | None = number(None, least=2)
    """Tokens per sequence; required with `text`, checked against the data with `path`."""
    validation_fraction: float = number(0.02, least=0, below=1)
    """Share of the documents held out."""
    seed: int = number(0, least=0)
    """Seed of the order of documents and of the split."""
    processes: int = number(2, least=1)
    """Processes that tokenize."""
    max_bytes: int | None = number(None, least=1)
    """Bytes of text to take; None takes all."""
    field: str = "text"
    """Name of the text in JSON-lines records."""

    @property
    def is_given(self) -> bool:
        """Whether the section names data."""
        return self.path is not None or bool(self.text)

    def __post_init__(self) -> None:
        if self.path is not None and self.text:
            raise UserError(f"config: {EITHER}")
        if self.text and self.seq_length is None:
            raise UserError("config: 'data.seq_length' is missing; 'data.text' needs it")
