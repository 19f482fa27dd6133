"""What masking has to know about a tokenizer: its mask token, its special tokens, where words begin.

Read from `tokenizer.json` and `tokenizer_config.json` as they are; the tokenizers library is not needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from mappings.errors import UserError
from mappings.formats.hf_directory import read_json
from ms_models.data.chinese_words import ChineseWords, is_chinese
from ms_models.data.tokenization import FILE

SETTINGS = "tokenizer_config.json"
BYTE_SPACE, PIECE_SPACE = "\u0120", "\u2581"  # how byte-level BPE and SentencePiece write the space before a word


@dataclass(frozen=True)
class MaskingVocabulary:
    """The tokens of a tokenizer, as masking sees them."""

    tokens: tuple[str, ...]
    """Token of each id; empty for an id that has none."""
    special: frozenset[int]
    """Ids that are never hidden and never put in."""
    mask_id: int
    word_mark: str
    """Prefix that tells where words begin, such as `##`; empty where there is none."""
    goes_on: bool
    """Whether the mark is on the tokens that go on, rather than on those that begin a word."""
    chinese: ChineseWords | None = None
    """Words of Chinese characters; without them each character is a word."""

    @classmethod
    def read(cls, directory: Path, lexicon: Path | None = None) -> MaskingVocabulary:
        """The vocabulary of a model directory.

        Args:
            directory: holds `tokenizer.json` and `tokenizer_config.json`.
            lexicon: Chinese words, one a line; see `ChineseWords.read`.

        Raises:
            UserError: a file is missing or odd, or there is no mask token.
        """
        path = directory / FILE
        body = read_json(path)
        model, added = body.get("model"), body.get("added_tokens") or []
        if not isinstance(model, Mapping) or not isinstance(model.get("vocab"), dict | list):
            raise UserError(f"{path}: names no vocabulary")
        by_token = _by_token(model["vocab"])
        special = set()
        for token in added:
            by_token[token["content"]] = token["id"]
            if token.get("special"):
                special.add(token["id"])
        mask = _mask_token(directory / SETTINGS)
        if mask not in by_token:
            raise UserError(f"{directory / SETTINGS}: mask_token is {mask!r}, which {FILE} does not have")
        tokens = [""] * (max(by_token.values()) + 1)
        for token, number in by_token.items():
            tokens[number] = token
        special.add(by_token[mask])
        mark, goes_on = _word_mark(model, body.get("pre_tokenizer"))
        chinese = None if lexicon is None else ChineseWords.read(lexicon)
        return cls(tuple(tokens), frozenset(special), by_token[mask], mark, goes_on, chinese)

    @property
    def size(self) -> int:
        """Number of ids."""
        return len(self.tokens)

    @cached_property
    def is_special(self) -> np.ndarray:
        """Of each id, bool."""
        return np.isin(np.arange(self.size), list(self.special))

    @cached_property
    def ordinary(self) -> np.ndarray:
        """Ids that may stand in for another token, int64."""
        return np.array([i for i, token in enumerate(self.tokens) if token and i not in self.special])

    def require_words(self) -> None:
        """Raises a UserError when nothing tells where words begin."""
        if not self.word_mark:
            raise UserError(f"masking: whole_words needs a tokenizer that marks words; this {FILE} has no known mark")

    def first_of_word(self, ids: np.ndarray) -> np.ndarray:
        """Where the word of each token begins, `[B, S]`, for ids `[B, S]`. Special tokens are words of their own."""
        begins = self._begins[ids]
        begins[:, 0] = True
        begins[:, 1:] |= self.is_special[ids[:, :-1]]
        if self.chinese is not None:
            for row, at in zip(ids, begins, strict=True):
                at &= ~self.chinese.goes_on([self._characters.get(int(number), "") for number in row])
        return np.maximum.accumulate(np.where(begins, np.arange(ids.shape[1]), 0), axis=1)

    @cached_property
    def _begins(self) -> np.ndarray:
        """Of each id, whether it begins a word."""
        marked = np.array([token.startswith(self.word_mark) for token in self.tokens])
        return (marked != self.goes_on) | self.is_special

    @cached_property
    def _characters(self) -> dict[int, str]:
        """Ids of single Chinese characters."""
        return {number: token for number, token in enumerate(self.tokens) if len(token) == 1 and is_chinese(token)}


def _by_token(vocab: Any) -> dict[str, int]:
    """Unigram models list pieces with their scores, the others map tokens to ids."""
    if isinstance(vocab, dict):
        return dict(vocab)
    return {piece[0]: number for number, piece in enumerate(vocab)}


def _mask_token(path: Path) -> str:
    token = read_json(path).get("mask_token")
    if isinstance(token, Mapping):
        token = token.get("content")
    if not isinstance(token, str):
        raise UserError(f"{path}: names no mask_token, so this tokenizer is none for masked-language training")
    return token


def _word_mark(model: Mapping[str, Any], before: Any) -> tuple[str, bool]:
    """The mark, and whether it is on tokens that go on; empty where none is known."""
    if model.get("type") == "WordPiece":
        return model.get("continuing_subword_prefix") or "##", True
    kinds = str(before)
    if "ByteLevel" in kinds:
        return BYTE_SPACE, False
    if model.get("type") == "Unigram" or "Metaspace" in kinds:
        return PIECE_SPACE, False
    return "", False
