"""`setup.cfg`: the requirements of setuptools, one in each indented line."""

from __future__ import annotations

import configparser
import re
from collections.abc import Iterator, Set
from dataclasses import dataclass

from migrate.code.dependencies.swap import is_framework, name_of, swap
from migrate.code.findings import finding
from migrate.report import Finding

_KEYS = ("install_requires", "setup_requires", "tests_require")
_HEADER = re.compile(r"^\[([^\]]+)\]")
_KEY = re.compile(r"^([A-Za-z0-9_.-]+)\s*[=:]\s*(.*)$")


@dataclass(frozen=True)
class _List:
    section: str
    key: str
    lines: tuple[int, ...]
    """Places of its entries, from 0."""


def convert_setup_cfg(text: str, path: str, imported: Set[str] = frozenset()) -> tuple[str, list[Finding]]:
    """The new text, and findings for what needs torch itself or cannot be rewritten."""
    before = _read(text)
    if before is None:
        return text, [finding("M101", "no configuration file", file=path)]
    lines = text.splitlines(keepends=True)
    new = list(lines)
    findings: list[Finding] = []
    wanted: dict[tuple[str, str], list[str]] = {}
    for found in _lists(lines):
        entries = [lines[n].strip() for n in found.lines]
        swapped = swap(entries, imported)
        findings += [
            finding("M114", f"{p.name}: {p.advice}", file=path, line=found.lines[p.place] + 1) for p in swapped.problems
        ]
        for number, entry, texts in zip(found.lines, entries, swapped.items, strict=True):
            if texts != (entry,):
                indent, ending = re.match(r"\s*", lines[number])[0], lines[number][len(lines[number].rstrip("\r\n")) :]  # type: ignore[index]
                new[number] = "".join(f"{indent}{text}{ending}" for text in texts)
        wanted[found.section, found.key] = swapped.result()
    result = "".join(new)
    after = _read(result)
    if after is None or any(_entries(after[section][key]) != value for (section, key), value in wanted.items()):
        return text, [*findings, finding("M115", "torch is required in a form that is not rewritten", file=path)]
    if any(is_framework(name_of(entry)) for section, key in _places(after) for entry in _entries(after[section][key])):
        findings.append(finding("M115", "torch is required in a form that is not rewritten", file=path))
    return result, findings


def _lists(lines: list[str]) -> Iterator[_List]:
    """The lists of requirements whose entries stand in lines of their own."""
    section = key = ""
    entries: list[int] = []
    for number, line in enumerate([*lines, "[end]"]):
        if line[:1].isspace() and line.strip():
            if not line.lstrip().startswith(("#", ";")):
                entries.append(number)
            continue
        if not line.strip() or line.startswith(("#", ";")):
            continue
        if entries and _is_list(section, key):
            yield _List(section, key, tuple(entries))
        entries = []
        if header := _HEADER.match(line):
            section, key = header[1], ""
        elif match := _KEY.match(line):
            key = match[1].lower()


def _is_list(section: str, key: str) -> bool:
    return (section == "options" and key in _KEYS) or section == "options.extras_require"


def _places(body: configparser.ConfigParser) -> Iterator[tuple[str, str]]:
    for section in body.sections():
        yield from ((section, key) for key in body[section] if _is_list(section, key))


def _entries(value: str) -> list[str]:
    return [line.strip() for line in value.splitlines() if line.strip() and not line.strip().startswith("#")]


def _read(text: str) -> configparser.ConfigParser | None:
    body = configparser.ConfigParser(interpolation=None)
    try:
        body.read_string(text)
    except configparser.Error:
        return None
    return body
