"""`pyproject.toml` and `Pipfile`: lists of requirements, and tables with a package in each line.

The text is edited where a requirement stands and nowhere else. The result is read again, and has to be what the file
said with exactly these lists and tables changed; otherwise nothing is written.
"""

from __future__ import annotations

import copy
import json
import re
import tomllib
from collections.abc import Iterator, Set
from dataclasses import dataclass
from typing import Any

from migrate.code.dependencies.edits import Edit, Item, applied, list_edits
from migrate.code.dependencies.swap import MINDSPORE, NUMPY, VERSIONS, goes, is_framework, name_of, problem_of, swap
from migrate.code.findings import finding
from migrate.report import Finding

Path = tuple[str, ...]
_TOKEN = re.compile(
    r'"""(?:\\.|[^\\])*?"""|\'\'\'.*?\'\'\'|"(?:\\.|[^"\\\n])*"|\'[^\'\n]*\'|#[^\n]*|[\[\]{}\n]', re.DOTALL
)
_HEADER = re.compile(r"[ \t]*\[\[?[ \t]*([^\]\n]+?)[ \t]*\]\]?[ \t]*(?:#[^\n]*)?(?=\n|$)")
_PART = r"""(?:[\w-]+|"[^"\n]*"|'[^'\n]*')"""
_KEY = re.compile(rf"[ \t]*({_PART}(?:[ \t]*\.[ \t]*{_PART})*)[ \t]*=[ \t]*")
_TABLES = re.compile(r"tool\.poetry\.(dev-dependencies|dependencies|group\.[^.]+\.dependencies)|packages|dev-packages")
"""Tables whose keys are packages, of poetry and of pipenv."""
_LISTS = re.compile(
    r"project\.dependencies|project\.optional-dependencies\..+|dependency-groups\..+|build-system\.requires"
    r"|tool\.uv\.(dev|constraint|override)-dependencies|tool\.pdm\.dev-dependencies\..+"
    r"|tool\.hatch\.envs\..+\.(extra-)?dependencies|tool\.poetry\.extras\..+"
)


@dataclass(frozen=True)
class _Entry:
    """A key of the file with the place of its value."""

    path: Path
    start: int
    value: int
    end: int
    strings: tuple[Item, ...]
    """The strings of an array."""


def convert_toml(text: str, path: str, imported: Set[str] = frozenset()) -> tuple[str, list[Finding]]:
    """The new text, and findings for what needs torch itself or cannot be rewritten."""
    try:
        body = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        return text, [finding("M101", f"no TOML ({error})", file=path)]
    entries = list(_entries(text))
    findings: list[Finding] = []
    edits: list[Edit] = []
    wanted = copy.deepcopy(body)
    for entry in entries:
        value = _at(body, entry.path)
        if _LISTS.fullmatch(".".join(entry.path)) and _is_strings(value):
            if [item.value for item in entry.strings] != value:
                continue  # seen below: torch is still there
            swapped = swap(value, imported)
            findings += [
                finding("M114", f"{p.name}: {p.advice}", file=path, line=_line(text, entry.strings[p.place].start))
                for p in swapped.problems
            ]
            new = _names_only(swapped.items) if entry.path[:-1] == ("tool", "poetry", "extras") else swapped.items
            edits += list_edits(text, entry.strings, new, json.dumps)
            _at(wanted, entry.path[:-1])[entry.path[-1]] = [requirement for item in new for requirement in item]
    for table in dict.fromkeys(e.path[:-1] for e in entries if _TABLES.fullmatch(".".join(e.path[:-1]))):
        members = [entry for entry in entries if entry.path[:-1] == table]
        edits += _table_edits(text, path, members, _at(wanted, table), imported, findings)
    result = applied(text, edits)
    if result != text and _read(result) != wanted:
        return text, [*findings, finding("M115", "torch is required in a form that is not rewritten", file=path)]
    if left := next(_torch_left(_read(result)), None):
        line = next((_line(result, entry.start) for entry in _entries(result) if entry.path == left), None)
        findings.append(finding("M115", f"{'.'.join(left)} still names torch", file=path, line=line))
    return result, findings


def _entries(text: str) -> Iterator[_Entry]:
    """Every key with a value, by a reading of TOML that knows strings, brackets and comments."""
    table: Path = ()
    position = 0
    while position < len(text):
        if header := _HEADER.match(text, position):
            table = _parts(header[1])
            position = header.end()
        elif key := _KEY.match(text, position):
            end, strings = _value(text, key.end())
            yield _Entry((*table, *_parts(key[1])), key.start(1), key.end(), end, tuple(strings))
            position = end
        newline = text.find("\n", position)
        position = len(text) if newline < 0 else newline + 1


def _value(text: str, start: int) -> tuple[int, list[Item]]:
    """End of a value, and the strings in its outermost array."""
    depth, end, strings = 0, start, []
    for token in _TOKEN.finditer(text, start):
        mark = token[0]
        if mark == "\n" and depth == 0:
            break
        if mark in "[{":
            depth += 1
        elif mark in "]}":
            depth -= 1
        elif mark[0] in "\"'" and depth == 1 and text[start] == "[":
            strings.append(Item(token.start(), token.end(), tomllib.loads(f"x = {mark}")["x"]))
        if mark[0] == "#" and depth == 0:
            break
        if mark != "\n" and mark[0] != "#":
            end = token.end()
    line = text.find("\n", end)
    plain = text[end : len(text) if line < 0 else line].split("#")[0].rstrip()
    return end + len(plain), strings


def _parts(key: str) -> Path:
    """`tool."my tool".x` as parts."""
    return tuple(part.strip().strip("\"'") for part in re.findall(r"\"[^\"]*\"|'[^']*'|[^.\s]+", key))


def _table_edits(
    text: str, path: str, members: list[_Entry], table: dict[str, Any], imported: Set[str], findings: list[Finding]
) -> list[Edit]:
    """Edits of a table whose keys are packages; `table` becomes what the result has to say."""
    names = {name_of(entry.path[-1]): entry for entry in members}
    for name, entry in names.items():
        if advice := problem_of(name, imported):
            findings.append(finding("M114", f"{name}: {advice}", file=path, line=_line(text, entry.start)))
    if not any(is_framework(name) for name in names):
        return []
    edits = []
    for name, entry in names.items():
        key, old = entry.path[-1], table.get(entry.path[-1])
        line = text.rfind("\n", 0, entry.start) + 1
        if is_framework(name):
            value = _package(MINDSPORE, old)
            new = f"{MINDSPORE} = {_toml(value)}"
            del table[key]
            table[MINDSPORE] = value
            if NUMPY not in names:
                table[NUMPY] = _package(NUMPY, old)
                new += f"\n{text[line : entry.start]}{NUMPY} = {_toml(table[NUMPY])}"
            edits.append(Edit(entry.start, entry.end, new))
        elif goes(name, imported):
            del table[key]
            newline = text.find("\n", entry.end)
            edits.append(Edit(line, len(text) if newline < 0 else newline + 1, ""))
        elif name == NUMPY and not re.search(r"1\.26", str(old)):
            table[key] = _package(NUMPY, old)
            edits.append(Edit(entry.value, entry.end, _toml(table[key])))
    return edits


def _package(package: str, like: Any) -> Any:
    """The value of a package in such a table; what says when it is wanted is taken over."""
    version = VERSIONS[package]
    if not isinstance(like, dict):
        return version
    kept = {key: value for key, value in like.items() if key in ("optional", "markers", "python", "platform")}
    return {"version": version, **kept} if kept else version


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml(item)}" for key, item in value.items()) + " }"
    return json.dumps(value)  # strings and booleans are written alike


def _names_only(items: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """An extra of poetry lists names; numpy is a dependency of every extra anyway."""
    return [
        tuple(name_of(text) or text for text in item if text == item[0] or name_of(text) != NUMPY) for item in items
    ]


def _torch_left(value: Any, path: Path = ()) -> Iterator[Path]:
    """Where torch is still a requirement or has settings of its own."""
    if isinstance(value, dict):
        for key, item in value.items():
            if is_framework(name_of(key)):
                yield (*path, key)
            yield from _torch_left(item, (*path, key))
    elif isinstance(value, list) and _LISTS.fullmatch(".".join(path)):
        yield from [path for item in value if isinstance(item, str) and is_framework(name_of(item))]


def _at(body: Any, path: Path) -> Any:
    for part in path:
        body = body.get(part) if isinstance(body, dict) else None
    return body


def _is_strings(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _read(text: str) -> dict[str, Any] | None:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return None


def _line(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1
