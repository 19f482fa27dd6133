"""The modules of a compared model as a tree for a page: errors as numbers and as bars on a logarithmic scale."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

LOWEST = 1e-9
"""Where the scale of the bars begins; it ends at 1."""
OPEN_LEVELS = ("guilty", "differs")
RUN = 6
"""So many like siblings in a row become one line that opens."""
BADGES = {"guilty": "fail", "differs": "fail", "heir": "could_not_run", "agrees": "pass", "not judged": "skipped"}


@dataclass(frozen=True)
class Error:
    """A relative difference to show."""

    text: str
    bar: str
    """Length in percent."""
    over: bool
    """Whether it is above the limit."""


@dataclass
class Node:
    """A module."""

    name: str
    short: str
    """Without the name of the module around it."""
    depth: int
    errors: list[Error | None]
    """Of its input, its output, and of what it computes alone."""
    verdict: str
    badge: str
    place: str
    limit: str
    """Place of the limit on the scale, in percent."""
    suspects: list[str]
    children: list[Node] = field(default_factory=list)
    is_open: bool = False
    inside: dict[str, int] = field(default_factory=dict)
    """How many modules below have which verdict, agreeing ones left out."""


def module_tree(facts: Mapping[str, Any]) -> list[Node]:
    """The roots of the tree; empty where no modules were compared.

    Args:
        facts: of a parity report: `modules` where differences were explained, else the rows of stage F in `tensors`.
            Where several modules were compared, each is a root; `module` of a row names it.
    """
    explained, tensors = facts.get("modules") or [], facts.get("tensors") or []
    rows = explained or _from_outputs(tensors)
    if len(names := compared_modules([*tensors, *explained])) > 1:
        rows = [row for name in names for row in _rooted(name, explained, tensors)]
    roots: list[Node] = []
    path: list[Node] = []
    for row in rows:
        del path[row["depth"] :]
        node = _node(row, path[-1].name if path else "")
        (path[-1].children if path else roots).append(node)
        path.append(node)
    for root in roots:
        _sum_up(root)
    return _folded(roots)


def compared_modules(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names of the modules that were compared, where a report says of which each row is."""
    return list(dict.fromkeys(str(row["module"]) for row in rows if isinstance(row, Mapping) and "module" in row))


def _rooted(
    name: str, explained: Sequence[Mapping[str, Any]], tensors: Sequence[Mapping[str, Any]]
) -> list[Mapping[str, Any]]:
    """Rows of one compared module, below a row for itself with the largest difference of what it gives."""
    mine: Sequence[Mapping[str, Any]] = [row for row in explained if row.get("module") == name]
    mine = mine or _from_outputs([row for row in tensors if row.get("module") == name])
    if not mine:
        return []
    given = [row for row in mine if row["depth"] == 0 and str(row["name"]).startswith("(output)")] or mine
    worst = max(given, key=lambda row: _size(row.get("output")))
    verdict = "agrees" if all(row["verdict"] in ("agrees", "not judged") for row in mine) else "differs"
    head = {"name": name, "depth": 0, "output": worst.get("output"), "limit": worst.get("limit"), "verdict": verdict}
    return [head, *({**row, "depth": row["depth"] + 1} for row in mine)]


def has_column(nodes: Sequence[Node], column: int) -> bool:
    """Whether any module has an error there."""
    return any(node.errors[column] is not None or has_column(node.children, column) for node in nodes)


def percent(value: float) -> str:
    """Place of a difference on the logarithmic scale from `LOWEST` to 1."""
    if not value > 0:
        return "0" if value == 0 else "100"
    return f"{100 * min(1.0, max(0.0, 1 - math.log10(value) / math.log10(LOWEST))):.1f}"


def _from_outputs(tensors: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows of a tree from the outputs of stage F, where a module stands behind its submodules."""
    outputs = [row for row in tensors if row.get("stage") == "F"]
    known = {str(row["name"]): row for row in outputs}
    children: dict[str, list[str]] = {"": []}
    for name in known:
        parent = name.rpartition(".")[0]
        while parent and parent not in known:
            parent = parent.rpartition(".")[0]
        children.setdefault(parent, []).append(name)
    rows = []
    todo = [(name, 0) for name in reversed(children[""])]
    while todo:
        name, depth = todo.pop()
        row = known[name]
        verdict = "differs" if row.get("differs") else "agrees"
        rows.append(
            {"name": name, "depth": depth, "output": row.get("relative"), "limit": row.get("limit"), "verdict": verdict}
        )
        todo += [(child, depth + 1) for child in reversed(children.get(name, []))]
    return rows


def _node(row: Mapping[str, Any], parent: str) -> Node:
    limit = row.get("limit")
    limit = float(limit) if isinstance(limit, int | float) else math.nan
    name = str(row["name"])
    place = str(row.get("place", ""))
    return Node(
        name,
        name.removeprefix(f"{parent}.") if parent else name,
        int(row["depth"]),
        [_error(row.get(key), limit) for key in ("input", "output", "alone")],
        str(row["verdict"]),
        BADGES.get(str(row["verdict"]), "skipped"),
        "" if place == name else place,
        percent(limit) if math.isfinite(limit) else "",
        [str(one) for one in row.get("suspects", [])],
    )


def _folded(nodes: list[Node]) -> list[Node]:
    """With runs of siblings that all agree, or all inherit, behind one line each with the largest of their errors."""
    result: list[Node] = []
    for (verdict, is_plain), group in groupby(nodes, lambda node: (node.verdict, not _leads_on(node))):
        members = list(group)
        for node in members:
            node.children = _folded(node.children)
        if not is_plain or len(members) < RUN:
            result += members
            continue
        first, last = members[0], members[-1]
        worst = [_worst([node.errors[column] for node in members]) for column in range(len(first.errors))]
        text = f"{first.short} to {last.short} ({len(members)})"
        fold = Node(text, text, first.depth, worst, verdict, first.badge, "", first.limit, [], members)
        fold.inside = dict(sum((Counter(node.inside) for node in members), Counter()))
        result.append(fold)
    return result


def _leads_on(node: Node) -> bool:
    """Whether it is, or has inside, what a reader looks for."""
    return node.is_open or node.verdict not in ("agrees", "heir")


def _worst(errors: Sequence[Error | None]) -> Error | None:
    found = [error for error in errors if error is not None]
    return max(found, key=lambda error: float(error.bar), default=None)


def _error(value: object, limit: float) -> Error | None:
    if value is None:
        return None
    size = _size(value)
    return Error("0" if size == 0 else f"{size:.1e}", percent(size), not size <= limit)


def _size(value: object) -> float:
    return float(value) if isinstance(value, int | float | str) else math.nan


def _sum_up(node: Node) -> None:
    """Counts verdicts below a module, and opens what leads to a guilty one."""
    for child in node.children:
        _sum_up(child)
        for verdict, number in child.inside.items():
            node.inside[verdict] = node.inside.get(verdict, 0) + number
        if child.verdict != "agrees":
            node.inside[child.verdict] = node.inside.get(child.verdict, 0) + 1
    node.is_open = bool(node.place or node.suspects) or any(node.inside.get(level) for level in OPEN_LEVELS)
