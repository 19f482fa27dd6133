"""What `tokenizer.json` says, without the tokenizers library: tokens, ids, added tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mappings.errors import UserError


@dataclass(frozen=True)
class AddedToken:
    """One entry of `added_tokens`."""

    id: int
    content: str
    special: bool


@dataclass(frozen=True)
class Tokenizer:
    """Vocabulary of a fast tokenizer, added tokens included."""

    ids: Mapping[str, int]
    added: tuple[AddedToken, ...]
    clashes: tuple[tuple[int, str, str], ...]
    """(id, token, other token) wherever two tokens share an id."""
    body: Mapping[str, Any]
    """Content of the file."""

    @property
    def length(self) -> int:
        """Number of distinct tokens; what `len(tokenizer)` is in transformers."""
        return len(self.ids)

    @property
    def highest_id(self) -> int:
        """Largest id in use, -1 for an empty vocabulary."""
        return max(self.ids.values(), default=-1)


def parse_tokenizer(body: Mapping[str, Any]) -> Tokenizer:
    """Reads the content of `tokenizer.json`: BPE, WordPiece and WordLevel (a mapping) or Unigram (a list of pairs).

    Raises:
        UserError: the file has no vocabulary, or ids that are no whole numbers >= 0.
    """
    model = body.get("model")
    vocab = model.get("vocab") if isinstance(model, dict) else None
    ids: dict[str, int] = {}
    if isinstance(vocab, dict):
        ids.update(vocab)
    elif isinstance(vocab, list) and all(isinstance(pair, list) and pair for pair in vocab):
        ids.update({pair[0]: index for index, pair in enumerate(vocab)})
    else:
        raise UserError("tokenizer.json: model.vocab must be a mapping or a list of pairs")
    added = tuple(_added(entry) for entry in body.get("added_tokens") or [])
    for token in added:
        ids[token.content] = token.id
    for content, value in ids.items():
        if type(value) is not int or value < 0:
            raise UserError(f"tokenizer.json: id of {content!r} must be a whole number >= 0, found {value!r}")
    owners: dict[int, str] = {}
    clashes = []
    for content, value in ids.items():
        if value in owners:
            clashes.append((value, owners[value], content))
        owners.setdefault(value, content)
    return Tokenizer(ids, added, tuple(clashes), body)


def _added(entry: Any) -> AddedToken:
    if not isinstance(entry, dict) or not isinstance(entry.get("content"), str) or type(entry.get("id")) is not int:
        raise UserError(
            f"tokenizer.json: added_tokens entry must have a content and a whole-number id, found {entry!r}"
        )
    return AddedToken(entry["id"], entry["content"], bool(entry.get("special", False)))


def token_text(value: Any) -> str | None:
    """The text of a token as configuration files write it: a string, or an object with `content`."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None
