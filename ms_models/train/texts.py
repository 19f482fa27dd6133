"""`Texts`: text to tokens and back, with the tokenizer of the model or of the data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mappings.errors import UserError
from ms_models.data.tokenization import FILE
from ms_models.train.config import RunConfig


class Texts:
    """A tokenizer, or none: then tokens are shown as numbers and there are no texts to begin with.

    Args:
        directory: holds `tokenizer.json`; None for no tokenizer.
    """

    def __init__(self, directory: Path | None) -> None:
        self._tokenizer: Any = None
        if directory is not None:
            try:
                from tokenizers import Tokenizer
            except ImportError as error:
                raise UserError("prompts need the tokenizers library: pip install 'msmigrate[hf]'") from error
            self._tokenizer = Tokenizer.from_file(str(directory / FILE))
            self._tokenizer.no_truncation()
            self._tokenizer.no_padding()

    @classmethod
    def of(cls, config: RunConfig) -> Texts:
        """The tokenizer that `data.tokenizer` names, else that beside the model or the prepared data, else none."""
        named = [config.data.tokenizer, config.model.path, str(config.data_directory)]
        return cls(next((Path(name) for name in named if name and (Path(name) / FILE).is_file()), None))

    def tokens(self, text: str) -> list[int]:
        """Tokens of a text, without special ones.

        Raises:
            UserError: there is no tokenizer, or the text is empty.
        """
        if self._tokenizer is None:
            raise UserError(f"metrics.prompts: neither data.tokenizer nor the model's directory has a {FILE}; add one")
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        if not ids:
            raise UserError(f"metrics.prompts: {text!r} has no tokens")
        return ids

    def text(self, tokens: Sequence[int]) -> str:
        """What tokens say; their numbers without a tokenizer."""
        if self._tokenizer is None:
            return " ".join(map(str, tokens))
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=False))
