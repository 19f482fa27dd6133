"""C3: the tokens that `tokenizer.json` puts around and behind a text have the ids of its own vocabulary."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from migrate.check.codes import finding
from migrate.check.subject import Subject
from migrate.check.tally import Tally
from migrate.report import Finding

FILE = "tokenizer.json"
ENDS = ("sep", "cls")
"""Pairs of text and id in the processors of BERT and RoBERTa."""


def inserted_tokens_are_known(subject: Subject, tally: Tally) -> Iterator[Finding]:
    """Ids that the post-processor and the padding insert are those of their tokens."""
    if subject.tokenizer is None:
        return
    for field, text, number in inserted(subject.tokenizer.body):
        tally.add()
        known = subject.tokenizer.ids.get(text)
        if known != number:
            has = "the vocabulary does not have" if known is None else f"has id {known} in the vocabulary"
            yield finding("C317", f"{field} inserts id {number!r} for {text!r}, which {has}", file=FILE, field=field)


def inserted(body: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """(field, text, id) of every token that the file inserts by number.

    Args:
        body: content of `tokenizer.json`.
    """
    yield from _of_processor("post_processor", body.get("post_processor"))
    padding = body.get("padding")
    if isinstance(padding, dict) and isinstance(padding.get("pad_token"), str):
        yield "padding", padding["pad_token"], padding.get("pad_id")


def _of_processor(field: str, processor: Any) -> Iterator[tuple[str, str, Any]]:
    if not isinstance(processor, dict):
        return
    for index, part in enumerate(processor.get("processors") or ()):
        yield from _of_processor(f"{field}.processors[{index}]", part)
    for name in ENDS:
        pair = processor.get(name)
        if isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str):
            yield f"{field}.{name}", pair[0], pair[1]
    special = processor.get("special_tokens")
    for name, entry in special.items() if isinstance(special, dict) else ():
        texts, numbers = (entry.get(key) for key in ("tokens", "ids")) if isinstance(entry, dict) else ((), ())
        if isinstance(texts, list) and isinstance(numbers, list):
            for text, number in zip(texts, numbers, strict=False):
                yield f"{field}.special_tokens[{name!r}]", str(text), number


ASSERTIONS = (inserted_tokens_are_known,)
