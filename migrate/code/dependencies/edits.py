"""Edits of a text by place: a requirement out of a bracketed list, another one in, everything else as it was."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Edit:
    """Text from `start` to `end` replaced."""

    start: int
    end: int
    text: str


@dataclass(frozen=True)
class Item:
    """A quoted string of a list, with its quotes."""

    start: int
    end: int
    value: str


def applied(text: str, edits: Sequence[Edit]) -> str:
    """The text after edits that do not overlap."""
    for edit in sorted(edits, key=lambda edit: edit.start, reverse=True):
        text = text[: edit.start] + edit.text + text[edit.end :]
    return text


def list_edits(
    text: str, items: Sequence[Item], new: Sequence[tuple[str, ...]], quoted: Callable[[str], str]
) -> list[Edit]:
    """Edits of a list in brackets.

    Args:
        text: the whole file.
        items: its strings.
        new: what stands in place of each.
        quoted: writes a string as the language of the file does.
    """
    edits = []
    for item, texts in zip(items, new, strict=True):
        if texts == (item.value,):
            continue
        if texts:
            quote = text[item.start]
            words = [f"'{t}'" if quote == "'" and "'" not in t else quoted(t) for t in texts]
            edits.append(Edit(item.start, item.end, f",{_gap(text, item)}".join(words)))
        else:
            edits.append(_removal(text, item))
    return edits


def _gap(text: str, item: Item) -> str:
    """What stands between two entries: the line break and indentation in front of this one, or a blank."""
    start = item.start
    while start and text[start - 1] in " \t":
        start -= 1
    return text[start - 1 : item.start] if start and text[start - 1] == "\n" else " "


def _removal(text: str, item: Item) -> Edit:
    """An entry without its comma; the whole line, comment included, if it stands alone there."""
    line = text.rfind("\n", 0, item.start) + 1
    rest = re.compile(r"[ \t]*,?[ \t]*(?:#[^\n]*)?(?:\r?\n|$)").match(text, item.end)
    if not text[line : item.start].strip() and rest:
        return Edit(line, rest.end(), "")
    after = re.compile(r"\s*,[ \t]*").match(text, item.end)
    if after:
        return Edit(item.start, after.end(), "")
    before = re.compile(r",\s*$").search(text, 0, item.start)  # the last entry takes the comma before it along
    return Edit(before.start() if before else item.start, item.end, "")
