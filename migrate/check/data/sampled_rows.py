"""C313 and C71x: rows of prepared data, looked at."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from mappings.errors import UserError
from migrate.check.codes import finding
from migrate.check.data.data_sets import ROWS, DataSet, Readers
from migrate.check.subject import Subject
from migrate.check.tally import Assertion, Tally
from migrate.report import Finding

IGNORED = -100
FEW = 3
"""Documents that a sample must be long enough for, before it says something that none of them ends."""


def assertions(readers: Readers) -> tuple[Assertion, ...]:
    """What is asked of the rows that `readers` gives."""

    def rows_are_sound(subject: Subject, tally: Tally) -> Iterator[Finding]:
        """Ids are the model's, labels are the tokens themselves, padding has none, documents end."""
        for data in subject.data_sets:
            if not data.is_opened or not data.is_prepared:
                continue
            try:
                rows = readers.rows(data.path, ROWS)
            except UserError as error:
                yield finding("C701", str(error), file=data.where)
                continue
            tally.add(int(rows["input_ids"].size))
            yield from judge(subject, data, *(rows[name] for name in ("input_ids", "attention_mask", "labels")))

    return (rows_are_sound,)


def judge(subject: Subject, data: DataSet, ids: np.ndarray, mask: np.ndarray, labels: np.ndarray) -> Iterator[Finding]:
    """What is wrong with rows `[N, S]`.

    Args:
        subject: the model.
        data: where the rows are from.
        ids: tokens.
        mask: 0 at padding; 1, or the number of the document.
        labels: the token itself where it is learned, -100 elsewhere; models shift.
    """

    def at(code: str, wrong: np.ndarray, words: Callable[[int, int], str]) -> Iterator[Finding]:
        if wrong.any():
            row, place = (int(i) for i in np.argwhere(wrong)[0])
            count = f"{int(wrong.sum())} of {wrong.size} positions in {len(ids)} rows; "
            message = f"{count}the first is row {row} of the sample, position {place}: {words(row, place)}"
            yield finding(code, message, file=data.name)

    kept, learned = mask != 0, labels != IGNORED
    if subject.vocab_size is not None:
        high = subject.vocab_size - 1
        yield from at("C313", (ids < 0) | (ids > high), lambda r, p: f"id {ids[r, p]}, the model has 0 to {high}")
    yield from at("C711", learned & ~kept, lambda r, p: f"label {labels[r, p]} at padding")
    moved = np.zeros(labels.shape, bool)
    moved[:, :-1] = labels[:, :-1] == ids[:, 1:]
    both = learned & kept
    wrong = both & (labels != ids)
    if wrong.any() and (moved | ~both)[:, :-1].all():
        yield from at("C712", wrong, lambda r, p: f"label {labels[r, p]} is the next token: shifted already")
    else:
        yield from at("C712", wrong, lambda r, p: f"label {labels[r, p]}, token {ids[r, p]}")
    returns = np.zeros(mask.shape, bool)
    returns[:, 1:] = kept[:, 1:] & ~kept[:, :-1]
    yield from at("C713", returns, lambda r, p: "a token behind padding")
    empty = ~both.any(axis=1)
    if empty.any():
        yield finding("C714", f"{int(empty.sum())} of {len(ids)} rows have no label", file=data.name)
    eos, pad = data.tokenizer.get("eos"), data.tokenizer.get("pad")
    if type(pad) is int and pad != eos:
        yield from at("C715", kept & (ids == pad), lambda r, p: f"the padding token {pad} is part of the text")
    documents, tokens = _documents(data)
    if type(eos) is int and documents and kept.sum() > FEW * tokens / documents and not (kept & (ids == eos)).any():
        message = (
            f"{len(ids)} rows of {ids.shape[1]} tokens hold no end-of-text token ({eos}); "
            f"a document has {tokens / documents:.0f} tokens on average"
        )
        yield finding("C716", message, file=data.name)


def _documents(data: DataSet) -> tuple[int, int]:
    """Documents and tokens of the training split, 0 where the description does not say."""
    body = data.body or {}
    if body.get("packing") == "pad":
        return 0, 0  # ends with the tokenizer's own separator
    documents = (body.get("documents") or {}).get("train")
    tokens = ((body.get("splits") or {}).get("train") or {}).get("tokens")
    return (documents, tokens) if type(documents) is int and type(tokens) is int else (0, 0)
