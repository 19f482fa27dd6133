"""Edits of small files that end a finding, where there is one right value: shown as a diff, made when asked for."""

from __future__ import annotations

import difflib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mappings.errors import UserError
from migrate.check.positions import rope_parameters
from migrate.check.special_ids import ID_FILES, TOKEN_FILES
from migrate.check.subject import Subject
from migrate.check.tensors import FLOATS
from migrate.check.tokenizer import token_text
from migrate.check.vocabulary_rows import vocabulary_rows
from migrate.report import Finding

CONFIG, TOKENIZER = "config.json", "tokenizer.json"
ABSENT = object()


@dataclass(frozen=True)
class Change:
    """A field of a file gets a value, or goes."""

    file: str
    path: tuple[str | int, ...]
    value: Any
    """`ABSENT` removes the field."""


Fix = Callable[[Subject, Finding], Iterable[Change]]


def fixes(subject: Subject, findings: Iterable[Finding]) -> list[Change]:
    """What would end some of the findings, each field once; findings without one right value have none."""
    chosen: dict[tuple[str, tuple[str | int, ...]], Change] = {}
    for found in findings:
        if (fix := FIXES.get(found.code)) is not None:
            for change in fix(subject, found):
                chosen.setdefault((change.file, change.path), change)
    return list(chosen.values())


def edited(directory: Path, changes: Iterable[Change]) -> dict[str, tuple[str, str]]:
    """Text of each file before and after; what does not change keeps its layout.

    Raises:
        UserError: a file cannot be read.
    """
    result: dict[str, tuple[str, str]] = {}
    for change in changes:
        path = directory / change.file
        try:
            before = result[change.file][0] if change.file in result else path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{path}: cannot be read ({error})") from error
        text = result[change.file][1] if change.file in result else before
        result[change.file] = (before, _apply(text, change))
    return result


def diff(texts: dict[str, tuple[str, str]]) -> str:
    """The edits as one unified diff."""
    parts: list[str] = []
    for file, (before, after) in texts.items():
        lines = (before.splitlines(keepends=True), after.splitlines(keepends=True))
        parts += difflib.unified_diff(*lines, f"a/{file}", f"b/{file}")
    return "".join(part if part.endswith("\n") else f"{part}\n" for part in parts)


def write(directory: Path, texts: dict[str, tuple[str, str]]) -> None:
    """Replaces the files, each in one step."""
    for file, (_, after) in texts.items():
        temporary = directory / f".{file}.tmp"
        temporary.write_text(after, encoding="utf-8")
        temporary.replace(directory / file)


def _vocab_size(subject: Subject, found: Finding) -> Iterator[Change]:
    """Embedding and head agree on the rows, and the tokenizer fits them: the field is wrong."""
    tensors = subject.tensors or {}
    names = vocabulary_rows(subject)
    rows = {tensors[name].shape[0] for name in names.names if name in tensors and tensors[name].shape}
    # A table of its own is no witness: a head that was not extended would be lost from sight.
    needed = {parameter.name for parameter in subject.parameters}
    is_whole = bool(needed) and all(name in tensors for name in names.names if name in needed)
    if len(rows) != 1 or not is_whole:
        return
    [count] = rows
    if subject.tokenizer is None or subject.tokenizer.highest_id < count:
        yield Change(CONFIG, ("vocab_size",), count)


def _special_id(subject: Subject, found: Finding) -> Iterator[Change]:
    """All other files, at least two, agree on another id."""
    if found.file not in ID_FILES or found.field is None or subject.tokenizer is None:
        return
    role = found.field.removesuffix("_token_id")
    said: list[tuple[str, Any]] = []
    for file in ID_FILES:
        value = (subject.config if file == CONFIG else subject.files.get(file, {})).get(found.field)
        if type(value) is int:
            said.append((file, value))
    for file in TOKEN_FILES:
        text = token_text(subject.files.get(file, {}).get(f"{role}_token"))
        if text is not None and text in subject.tokenizer.ids:
            said.append((file, subject.tokenizer.ids[text]))
    if not said:
        return  # lists only
    (value, count), *rest = Counter(value for _, value in said).most_common()
    odd = [file for file, given in said if given != value]
    if count >= 2 and len(rest) == 1 and len(odd) == 1 and odd[0] in ID_FILES:
        yield Change(odd[0], (found.field,), value)


def _token_text(subject: Subject, found: Finding) -> Iterator[Change]:
    """transformers takes the text of tokenizer_config.json."""
    if found.field is not None:
        value = subject.files["tokenizer_config.json"].get(found.field)
        yield Change("special_tokens_map.json", (found.field,), value)


def _mark_special(subject: Subject, found: Finding) -> Iterator[Change]:
    text = token_text(subject.files.get(str(found.file), {}).get(str(found.field)))
    added = subject.tokenizer.added if subject.tokenizer is not None else ()
    for index, token in enumerate(added):
        if token.content == text:
            yield Change(TOKENIZER, ("added_tokens", index, "special"), True)


def _dtype(subject: Subject, found: Finding) -> Iterator[Change]:
    stored = Counter(entry.dtype for entry in (subject.tensors or {}).values() if entry.dtype in FLOATS)
    if found.field is not None and len(stored) == 1:
        yield Change(CONFIG, (found.field,), FLOATS[next(iter(stored))])


def _architecture(subject: Subject, found: Finding) -> Iterator[Change]:
    if subject.family is not None and len(subject.family.architectures) == 1:
        yield Change(CONFIG, ("architectures",), [subject.family.architectures[0]])


def _rope_theta(subject: Subject, found: Finding) -> Iterator[Change]:
    where = ("rope_parameters", "rope_theta") if "rope_parameters" in subject.config else ("rope_theta",)
    if len(where) == 1 or isinstance(rope_parameters(subject.config), dict):
        yield Change(CONFIG, where, 10000.0)


def _remove(subject: Subject, found: Finding) -> Iterator[Change]:
    if found.file is not None and found.field is not None:
        yield Change(found.file, (found.field,), ABSENT)


def _switch_off(subject: Subject, found: Finding) -> Iterator[Change]:
    if found.file is not None and found.field is not None:
        yield Change(found.file, (found.field,), None)


FIXES: dict[str, Fix] = {
    "C210": _switch_off,
    "C203": _vocab_size,
    "C302": _special_id,
    "C309": _token_text,
    "C310": _mark_special,
    "C409": _rope_theta,
    "C417": _architecture,
    "C424": _dtype,
    "C432": _remove,
}
"""By code. Codes that are not here have several right answers, or need more than a small edit."""


def _apply(text: str, change: Change) -> str:
    body = json.loads(text)
    wanted = deepcopy(body)
    place = wanted
    for step in change.path[:-1]:
        place = place[step] if not isinstance(place, dict) else place.setdefault(step, {})
    last = change.path[-1]
    if change.value is ABSENT:
        place.pop(last, None)
    else:
        place[last] = change.value
    if len(change.path) == 1 and last in body and change.value is not ABSENT:
        old = re.escape(json.dumps(body[last], ensure_ascii=False))
        new = json.dumps(change.value, ensure_ascii=False)
        after = re.sub(rf'("{re.escape(str(last))}"\s*:\s*){old}', lambda match: match[1] + new, text)
        if json.loads(after) == wanted:
            return after
    indent = re.search(r"\n( +)\S", text)
    after = json.dumps(wanted, indent=len(indent[1]) if indent else None, ensure_ascii=False)
    return after + "\n" * text.endswith("\n")
