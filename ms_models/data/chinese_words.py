"""Words in runs of Chinese characters, by the longest match with a list of words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from mappings.errors import UserError

RANGES = ((0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2FA1F), (0xF900, 0xFAFF))
"""Blocks of characters that BERT's tokenizer splits off one by one."""


def is_chinese(character: str) -> bool:
    """Whether a character is of the blocks that BERT's tokenizer calls Chinese."""
    return any(low <= ord(character) <= high for low, high in RANGES)


@dataclass(frozen=True)
class ChineseWords:
    """A list of words of two characters and more."""

    words: frozenset[str]

    @classmethod
    def read(cls, path: Path) -> ChineseWords:
        """One word a line; what follows a space or tab (frequency, part of speech, as in jieba's list) is left out.

        Raises:
            UserError: the file is missing, no UTF-8, or has no word of two characters.
        """
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{path}: not a list of words that can be read ({error})") from error
        words = frozenset(line.split()[0] for line in lines if line.strip())
        words = frozenset(word for word in words if len(word) > 1 and all(map(is_chinese, word)))
        if not words:
            raise UserError(f"{path}: holds no Chinese word of two characters or more")
        return cls(words)

    @cached_property
    def longest(self) -> int:
        """Characters of the longest word."""
        return max(map(len, self.words))

    def goes_on(self, characters: Sequence[str]) -> np.ndarray:
        """Which tokens of a row are inside of a word, bool.

        From left to right, the longest word that fits is taken (forward maximum matching).

        Args:
            characters: the Chinese character that a token is; empty for any other token.
        """
        result = np.zeros(len(characters), bool)
        longest, at = self.longest, 0
        while at < len(characters):
            run = at
            while run < len(characters) and run - at < longest and characters[run]:
                run += 1
            while run - at > 1 and "".join(characters[at:run]) not in self.words:
                run -= 1
            result[at + 1 : run] = True
            at = max(run, at + 1)
        return result
