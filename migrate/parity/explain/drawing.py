"""The tree of modules as text: the path to every guilty module, and what lies beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

BEGINNING = 2  # modules shown of a row of those that agree
FORWARD = ("input", "output", "alone")
BACKWARD = ("arriving", "made", "alone")
"""Gradients: what arrives at a module, and the worst of those that it makes, of its input and its parameters."""
MARKS = {"guilty": "<-- guilty", "heir": "heir", "differs": "differs", "not judged": "not judged", "agrees": ""}


def draw(rows: Sequence[Mapping[str, Any]], titles: tuple[str, str, str] = FORWARD) -> list[str]:
    """Lines of a table; relative differences of input and output in the free run, and of what is computed alone.

    Modules off the path that agree, or only inherit, are counted and not listed, so the tree of a large model stays
    small.

    Args:
        rows: of an `Explanation`.
        titles: of the three columns.
    """
    guilty = [row["name"] for row in rows if row["verdict"] == "guilty"]
    first = next((row["name"] for row in rows if row["verdict"] in ("differs", "heir")), "")
    wanted = guilty or [first]
    lines: list[tuple[str, ...]] = [("module", *titles, "")]
    parents: dict[int, str] = {}
    skipped, shown = 0, 0
    for row in rows:
        name, depth = row["name"], row["depth"]
        parents[depth] = name
        on_path = any(one == name or one.startswith(f"{name}.") for one in wanted)
        beside = any(_parent(one) == _parent(name) for one in wanted)
        shown = 0 if on_path else shown + 1
        if not (on_path or (beside and shown <= BEGINNING)):
            skipped += 1
            continue
        _count(lines, skipped)
        skipped = 0
        sizes = [_number(row[key]) for key in ("input", "output", "alone")]
        short = name.removeprefix(f"{parents.get(depth - 1)}.") if depth else name
        mark = f"{MARKS['guilty']}: {row['place']}" if row.get("place", name) != name else MARKS[row["verdict"]]
        lines.append((f"{'  ' * depth}{short}", *sizes, mark))
    _count(lines, skipped)
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]


def _count(lines: list[tuple[str, ...]], number: int) -> None:
    if number:
        lines.append((f"  ... {number} more", "", "", "", ""))


def _parent(name: str) -> str:
    return name.rpartition(".")[0]


def _number(value: object) -> str:
    return "-" if value is None else value if isinstance(value, str) else f"{value:.1e}"
