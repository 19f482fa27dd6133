"""C2: the tokenizer, `vocab_size`, the embedding and the output layer agree on the number of tokens."""

from __future__ import annotations

from collections.abc import Iterator

from migrate.check.codes import finding
from migrate.check.subject import Subject
from migrate.check.tally import Tally
from migrate.check.tokenizer import token_text
from migrate.check.vocabulary_rows import vocabulary_rows
from migrate.report import Finding


def tokenizer_fits_model(subject: Subject, tally: Tally) -> Iterator[Finding]:
    """Every token id has a row in the embedding."""
    if subject.tokenizer is None or subject.vocab_size is None:
        return
    tally.add()
    length, highest = subject.tokenizer.length, subject.tokenizer.highest_id
    # An embedding that differs from vocab_size is C203; the tokenizer is only wrong if it exceeds both.
    rows = max(subject.vocab_size, _rows(subject, vocabulary_rows(subject).embedding) or 0)
    where = f"vocab_size {subject.vocab_size}, tokenizer.json has {length} tokens up to id {highest}"
    if highest >= rows:
        yield finding("C201", where, file="tokenizer.json", field="vocab_size")
    elif highest + 1 < subject.vocab_size:
        yield finding("C202", where, file="config.json", field="vocab_size")


def embedding_fits_config(subject: Subject, tally: Tally) -> Iterator[Finding]:
    """The embedding has `vocab_size` rows."""
    yield from _rows_fit(subject, tally, vocabulary_rows(subject).embedding, "C203")


def head_fits_config(subject: Subject, tally: Tally) -> Iterator[Finding]:
    """The output layer has `vocab_size` rows. Where embedding and head agree, `vocab_size` is wrong, which is C203."""
    names = vocabulary_rows(subject)
    for name in names.heads:
        if _rows(subject, name) != _rows(subject, names.embedding):
            yield from _rows_fit(subject, tally, name, "C204")


def ids_are_unique(subject: Subject, tally: Tally) -> Iterator[Finding]:
    """No two tokens share an id."""
    if subject.tokenizer is None:
        return
    tally.add(subject.tokenizer.length)
    for value, token, other in subject.tokenizer.clashes:
        yield finding("C205", f"id {value} belongs to {token!r} and to {other!r}", file="tokenizer.json")


def added_tokens_agree(subject: Subject, tally: Tally) -> Iterator[Finding]:
    """`added_tokens.json` and `added_tokens_decoder` give every token the id it has in `tokenizer.json`."""
    if subject.tokenizer is None:
        return
    claims = [("added_tokens.json", text, value) for text, value in subject.files.get("added_tokens.json", {}).items()]
    decoder = subject.files.get("tokenizer_config.json", {}).get("added_tokens_decoder") or {}
    if not isinstance(decoder, dict):
        message = f"added_tokens_decoder is a {type(decoder).__name__}, not a table of ids and tokens"
        yield finding("C206", message, file="tokenizer_config.json", field="added_tokens_decoder")
        decoder = {}
    for key, entry in decoder.items():
        text = token_text(entry)
        if not key.isdecimal() or text is None:
            yield finding(
                "C206",
                f"entry {key!r}: {entry!r} is no id and token",
                file="tokenizer_config.json",
                field="added_tokens_decoder",
            )
            continue
        claims.append(("tokenizer_config.json", text, int(key)))
    for file, text, value in claims:
        tally.add()
        known = subject.tokenizer.ids.get(text)
        if known != value:
            here = "does not have it" if known is None else f"gives it id {known}"
            yield finding("C206", f"{file} gives {text!r} id {value!r}; tokenizer.json {here}", file=file)


def _rows(subject: Subject, name: str) -> int | None:
    entry = (subject.tensors or {}).get(name)
    return entry.shape[0] if entry is not None and entry.shape else None


def _rows_fit(subject: Subject, tally: Tally, name: str, code: str) -> Iterator[Finding]:
    rows = _rows(subject, name)
    if rows is None or subject.vocab_size is None:
        return
    tally.add()
    if rows != subject.vocab_size:
        message = f"{name} has {rows} rows, config.json says vocab_size {subject.vocab_size}"
        yield finding(code, message, file="config.json", field="vocab_size", tensor=name)


ASSERTIONS = (tokenizer_fits_model, embedding_fits_config, head_fits_config, ids_are_unique, added_tokens_agree)
