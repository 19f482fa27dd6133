"""C72x: documents of text, as they would be tokenized. Needs the `tokenizers` library."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mappings.errors import UserError
from mappings.families.positions import first_position
from migrate.check import round_trip
from migrate.check.codes import finding
from migrate.check.data.data_sets import DOCUMENTS, DataSet, Document, Readers
from migrate.check.positions import positions
from migrate.check.subject import Subject
from migrate.check.tally import Assertion, Tally
from migrate.report import Finding

UNKNOWN_SHARE = 0.01
"""Of tokens; byte-level tokenizers have none at all."""


def assertions(readers: Readers) -> tuple[Assertion, ...]:
    """What is asked of the documents that `readers` gives."""

    def texts_are_sound(subject: Subject, tally: Tally) -> Iterator[Finding]:
        """Documents can be read and tokenized, and hold no special tokens spelled out."""
        for data in subject.data_sets:
            if data.is_prepared or not data.is_opened:
                continue
            documents: list[Document] = []
            try:
                documents.extend(readers.documents(data.path, DOCUMENTS))
            except UserError as error:
                yield finding("C721", str(error), file=data.name)
            tally.add(len(documents))
            yield from _judge(subject, data, documents)

    return (texts_are_sound,)


def _judge(subject: Subject, data: DataSet, documents: list[Document]) -> Iterator[Finding]:
    empty = [(key, problem or "empty") for key, text, problem in documents if text is None or not text.strip()]
    if empty:
        message = f"{len(empty)} of {len(documents)} documents have no text, e.g. {empty[0][0]} ({empty[0][1]})"
        yield finding("C722", message, file=data.name)
    texts = [(key, text) for key, text, _ in documents if text]
    special = [] if subject.tokenizer is None else [one for one in subject.tokenizer.added if one.special]
    spelled = [(key, one) for key, text in texts for one in special if one.content and one.content in text]
    if spelled:
        key, token = spelled[0]
        message = f"{len({key for key, _ in spelled})} of {len(documents)} documents spell out a special token, "
        yield finding("C723", f"{message}e.g. {key} has {token.content!r}, which becomes id {token.id}", file=data.name)
    if subject.tokenizer is None or not round_trip.available() or not texts:
        return
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(subject.directory / round_trip.FILE))
    except Exception:  # noqa: BLE001 - of the library; the round trip has reported it (C208)
        return
    tokenizer.no_truncation()
    encoded = [(key, tokenizer.encode(text, add_special_tokens=False).ids) for key, text in texts]
    yield from _tokens(subject, data, encoded, _unknown(tokenizer))


def _tokens(
    subject: Subject, data: DataSet, encoded: list[tuple[str, list[int]]], unknown: int | None
) -> Iterator[Finding]:
    total = sum(len(ids) for _, ids in encoded)
    if subject.vocab_size is not None:
        largest, key = max((max(ids, default=-1), key) for key, ids in encoded)
        if largest >= subject.vocab_size:
            message = f"{key} holds id {largest}, the model has ids 0 to {subject.vocab_size - 1}"
            yield finding("C313", message, file=data.name)
    if unknown is not None and total:
        count = sum(ids.count(unknown) for _, ids in encoded)
        if count > UNKNOWN_SHARE * total:
            message = f"{count} of {total} tokens ({count / total:.1%}) are unknown to the tokenizer (id {unknown})"
            yield finding("C724", message, file=data.name)
    _, limit = positions(subject.config)
    asked = subject.section("data").get("seq_length")
    room = asked if type(asked) is int else limit - first_position(subject.config) if type(limit) is int else None
    if room is not None:
        long = [(len(ids), key) for key, ids in encoded if len(ids) > room]
        if long:
            longest, key = max(long)
            what = f"{len(long)} of {len(encoded)} documents have more than {room} tokens, {key} has {longest}"
            yield finding("C725", what, file=data.name)


def _unknown(tokenizer: Any) -> int | None:
    """Id of what unknown text becomes."""
    token = getattr(tokenizer.model, "unk_token", None)
    return tokenizer.token_to_id(token) if token is not None else None
