"""`requirements*.txt` and `constraints*.txt`: pip's own format, a requirement or an option in each line."""

from __future__ import annotations

import re
from collections.abc import Set
from pathlib import PurePosixPath

from migrate.code.dependencies.swap import is_framework, name_of, swap
from migrate.code.findings import finding
from migrate.report import Finding

_COMMENT = re.compile(r"(?:^|\s+)#.*$")
_WHEELS = re.compile(r"^\s*(?:--extra-index-url|--index-url|-i|--find-links|-f)[ =].*\bpytorch\b")
"""An index that holds nothing but wheels of torch."""


def is_requirements(path: PurePosixPath) -> bool:
    """Whether a file is a pip requirements file by its name, or by its folder (`requirements/base.txt`)."""
    words = path.name.lower()
    named = "requirements" in words or words.startswith("constraints") or path.parent.name == "requirements"
    return path.suffix in (".txt", ".in") and named


def convert_requirements(text: str, path: str, imported: Set[str] = frozenset()) -> tuple[str, list[Finding]]:
    """The new text, and findings for what needs torch itself; unchanged if torch is not in it."""
    lines = text.splitlines(keepends=True)
    starts = [n for n in range(len(lines)) if n == 0 or not lines[n - 1].rstrip().endswith("\\")]
    entries = [_COMMENT.sub("", lines[n].rstrip("\r\n")).removesuffix("\\").rstrip() for n in starts]
    swapped = swap(entries, imported)
    findings = [
        finding("M114", f"{problem.name}: {problem.advice}", file=path, line=starts[problem.place] + 1)
        for problem in swapped.problems
    ]
    if not any(is_framework(name_of(entry)) for entry in entries):
        return text, findings
    if "--hash=" in text:
        place = next(n for n, entry in zip(starts, entries, strict=True) if is_framework(name_of(entry)))
        message = "torch is pinned with a hash; the hashes of mindspore are not known here"
        return text, [*findings, finding("M115", message, file=path, line=place + 1)]
    result: list[str] = []
    ends = [*starts[1:], len(lines)]
    for start, end, entry, new in zip(starts, ends, entries, swapped.items, strict=True):
        if _WHEELS.match(entry):
            continue
        result += _lines(lines[start:end], entry, new)
    return "".join(result), findings


def _lines(old: list[str], entry: str, new: tuple[str, ...]) -> list[str]:
    """The lines of one entry: as they were, or the new requirements with the old comment behind the first."""
    if new == (entry,):
        return old
    ending = old[-1][len(old[-1].rstrip("\r\n")) :]
    match = _COMMENT.search(old[0].rstrip("\r\n"))
    comment = match[0] if match and match[0].strip() else ""
    indent = old[0][: len(old[0]) - len(old[0].lstrip())]
    texts = [f"{indent}{text.strip()}{comment if place == 0 else ''}" for place, text in enumerate(new)]
    return [text + (ending or "\n") for text in texts[:-1]] + [texts[-1] + ending] if texts else []
