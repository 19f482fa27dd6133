"""C3: every special id in every file that names one exists, and all files mean the same token."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from migrate.check.codes import finding
from migrate.check.subject import Subject
from migrate.check.tally import Tally
from migrate.check.tokenizer import token_text
from migrate.report import Finding

ROLES = ("bos", "eos", "pad")
ID_FILES = ("config.json", "generation_config.json")
TOKEN_FILES = ("tokenizer_config.json", "special_tokens_map.json")
SUFFIX = "_token_id"
LISTS = ("suppress_tokens", "begin_suppress_tokens", "forced_decoder_ids", "bad_words_ids", "force_words_ids")
"""Fields of generation that name ids in lists, or in lists of lists."""


@dataclass(frozen=True)
class Claim:
    """One file's statement about one special token."""

    role: str
    file: str
    field: str
    ids: tuple[int, ...]


def ids_are_in_range(subject: Subject, tally: Tally) -> Iterator[Finding]:
    """Every `*_token_id` is a whole number (or a list of them) below `vocab_size`."""
    for file in ID_FILES:
        for name, value in _content(subject, file).items():
            is_list = name in LISTS
            if not (name.endswith((SUFFIX, "_token_index")) or is_list) or value is None or (value == [] and is_list):
                continue
            tally.add()
            ids = _ids(_flat(value) if is_list else value)
            if ids is None:
                yield finding("C307", f"{name} is {value!r}", file=file, field=name)
            elif subject.vocab_size is not None:
                for bad in (i for i in ids if not 0 <= i < subject.vocab_size):
                    message = f"{name} names id {bad}, the model has ids 0 to {subject.vocab_size - 1}"
                    yield finding("C301", message, file=file, field=name)


def files_agree(subject: Subject, tally: Tally) -> Iterator[Finding]:
    """bos, eos and pad are the same token in every file; lists of eos must at least share one id."""
    for role in ROLES:
        said = claims(subject, role)
        for claim in said[1:]:
            tally.add()
            first = said[0]
            if set(claim.ids) == set(first.ids):
                continue
            message = f"{role}: {first.file} says {show(first)}, {claim.file} says {show(claim)}"
            shared = set(claim.ids) & set(first.ids)
            code = "C303" if role == "eos" and shared else "C302"
            yield finding(code, message, file=claim.file, field=claim.field)


def tokens_exist(subject: Subject, tally: Tally) -> Iterator[Finding]:
    """Every special token that a tokenizer file names is in the vocabulary, and marked special."""
    if subject.tokenizer is None:
        return
    special = {token.content for token in subject.tokenizer.added if token.special}
    seen: set[str] = set()
    for file in TOKEN_FILES:
        for name, text in _tokens(_content(subject, file)):
            tally.add()
            if text not in subject.tokenizer.ids:
                yield finding("C306", f"{name} is {text!r}, which tokenizer.json does not have", file=file, field=name)
            elif text not in special and text not in seen:
                seen.add(text)
                yield finding("C310", f"{name} {text!r} is an ordinary token in tokenizer.json", file=file, field=name)


def token_texts_agree(subject: Subject, tally: Tally) -> Iterator[Finding]:
    """`special_tokens_map.json` and `tokenizer_config.json` name the same texts."""
    config, legacy = (dict(_tokens(_content(subject, file))) for file in TOKEN_FILES)
    for name in sorted(set(config) & set(legacy)):
        tally.add()
        if config[name] != legacy[name]:
            message = f"{name}: tokenizer_config.json says {config[name]!r}, special_tokens_map.json {legacy[name]!r}"
            yield finding("C309", message, file="special_tokens_map.json", field=name)


def pad_and_eos_are_set(subject: Subject, tally: Tally) -> Iterator[Finding]:
    """There is an eos, and a pad of its own."""
    ids = {role: {i for claim in claims(subject, role) for i in claim.ids} for role in ("eos", "pad")}
    tally.add(2)
    if not ids["eos"]:
        yield finding("C308", "no file names an eos token", field="eos_token_id")
    if not ids["pad"]:
        yield finding("C304", "no file names a pad token", field="pad_token_id")
    elif ids["pad"] & ids["eos"]:
        yield finding("C305", f"pad and eos are both id {min(ids['pad'] & ids['eos'])}", field="pad_token_id")


def claims(subject: Subject, role: str) -> list[Claim]:
    """What each file says about a role, well-formed statements only, config.json first."""
    found = []
    for file in ID_FILES:
        value = _content(subject, file).get(role + SUFFIX)
        ids = None if value is None else _ids(value)
        # What is out of range is C301 already; comparing it would report the same fault twice.
        if ids and (subject.vocab_size is None or all(0 <= i < subject.vocab_size for i in ids)):
            found.append(Claim(role, file, role + SUFFIX, ids))
    if subject.tokenizer is not None:
        seen: set[str] = set()
        for file in TOKEN_FILES:
            text = token_text(_content(subject, file).get(f"{role}_token"))
            # A second text for the same role is C309.
            if text is not None and text in subject.tokenizer.ids and not seen:
                found.append(Claim(role, file, f"{role}_token", (subject.tokenizer.ids[text],)))
                seen.add(text)
    return found


def _tokens(content: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in content.items():
        if name.endswith("_token") and (text := token_text(value)) is not None:
            yield name, text
        elif name in ("additional_special_tokens", "extra_special_tokens") and isinstance(value, list | dict):
            for key, item in value.items() if isinstance(value, dict) else enumerate(value):
                if (text := token_text(item)) is not None:
                    yield f"{name}[{key}]", text


def _content(subject: Subject, file: str) -> dict[str, Any]:
    return subject.config if file == "config.json" else subject.files.get(file, {})


def _flat(value: Any) -> Any:
    if not isinstance(value, list):
        return value
    # A position of forced_decoder_ids may be left to the model.
    return [part for item in value if item is not None for part in (_flat(item) if isinstance(item, list) else [item])]


def _ids(value: Any) -> tuple[int, ...] | None:
    values = value if isinstance(value, list) else [value]
    return tuple(values) if values and all(type(item) is int for item in values) else None


def show(claim: Claim) -> str:
    """The ids of a statement, for messages."""
    return str(claim.ids[0]) if len(claim.ids) == 1 else str(list(claim.ids))


ASSERTIONS = (ids_are_in_range, files_agree, tokens_exist, token_texts_agree, pad_and_eos_are_set)
