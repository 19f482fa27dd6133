"""`setup.py`: lists of requirements that are written out; the file is read, never run."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Set

from migrate.code.dependencies.edits import Edit, Item, applied, list_edits
from migrate.code.dependencies.swap import is_framework, name_of, swap
from migrate.code.findings import finding
from migrate.report import Finding

KEYWORDS = ("install_requires", "extras_require", "setup_requires", "tests_require")


def convert_setup_py(text: str, path: str, imported: Set[str] = frozenset()) -> tuple[str, list[Finding]]:
    """The new text, and findings for what needs torch itself or cannot be rewritten."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return text, []  # M101 says so
    findings: list[Finding] = []
    edits: list[Edit] = []
    starts = _line_starts(text)
    wanted: list[list[str]] = []
    for found in _lists(tree):
        items = [_item(element, starts) for element in found.elts]
        swapped = swap([item.value for item in items], imported)
        findings += [
            finding("M114", f"{p.name}: {p.advice}", file=path, line=found.elts[p.place].lineno)
            for p in swapped.problems
        ]
        edits += list_edits(text, items, swapped.items, json.dumps)
        wanted.append(swapped.result())
    result = applied(text, edits)
    if result != text and not _is_wanted(tree, result, wanted):
        return text, [*findings, finding("M115", "torch is required in a form that is not rewritten", file=path)]
    for node in _torch_left(ast.parse(result)):
        findings.append(
            finding("M115", f"{node.value!r} may be a requirement; its list is not known", file=path, line=node.lineno)
        )
    return result, findings


def _lists(tree: ast.AST) -> list[ast.List | ast.Tuple]:
    """Lists and tuples of plain strings that `setup(...)` gets as requirements, directly or by a name."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and _last(node.func) == "setup"]
    pending = [k.value for call in calls for k in call.keywords if k.arg in KEYWORDS]
    found: dict[int, ast.List | ast.Tuple] = {}
    names: set[str] = set()
    while pending:
        value = pending.pop()
        for node in ast.walk(value):
            if isinstance(node, ast.List | ast.Tuple) and node.elts and all(map(_is_text, node.elts)):
                found[id(node)] = node
            elif isinstance(node, ast.Name) and node.id not in names:
                names.add(node.id)
                pending += list(_values(tree, node.id))
    return sorted(found.values(), key=lambda node: (node.lineno, node.col_offset))


def _values(tree: ast.AST, name: str) -> Iterator[ast.expr]:
    """What is assigned to a name, or to its elements."""
    for node in ast.walk(tree):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target] if _adds(node) else []  # type: ignore[attr-defined]
        for target in targets:
            base = target.value if isinstance(target, ast.Subscript) else target
            if isinstance(base, ast.Name) and base.id == name and node.value is not None:  # type: ignore[attr-defined]
                yield node.value  # type: ignore[attr-defined]


def _adds(node: ast.AST) -> bool:
    return isinstance(node, ast.AugAssign | ast.AnnAssign)


def _is_wanted(before: ast.AST, text: str, wanted: list[list[str]]) -> bool:
    """Whether the new text has the wanted lists and is the old program otherwise."""
    try:
        after = ast.parse(text)
    except SyntaxError:
        return False
    lists = (_lists(before), _lists(after))
    if [[element.value for element in node.elts] for node in lists[1]] != [w for w in wanted if w]:  # type: ignore[attr-defined]
        return False
    for node in (*lists[0], *lists[1]):
        node.elts = []
    return ast.dump(before) == ast.dump(after)


def _torch_left(tree: ast.AST) -> Iterator[ast.Constant]:
    """Texts that require torch of a version, wherever they stand."""
    for node in ast.walk(tree):
        if _is_text(node) and is_framework(name_of(node.value)):  # type: ignore[attr-defined]
            plain = node.value.strip().lower()  # type: ignore[attr-defined]
            if plain not in ("torch", "pytorch"):  # a name alone may be a keyword of the package
                yield node  # type: ignore[misc]


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _last(node: ast.expr) -> str | None:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else None


def _line_starts(text: str) -> list[tuple[int, str]]:
    """Place and text of every line as the parser counts them."""
    starts, at = [], 0
    for line in text.splitlines(keepends=True):
        starts.append((at, line))
        at += len(line)
    return starts


def _item(node: ast.expr, starts: list[tuple[int, str]]) -> Item:
    """Place of a string; the parser counts columns in bytes."""
    assert isinstance(node, ast.Constant) and isinstance(node.value, str)
    assert node.end_lineno is not None and node.end_col_offset is not None

    def place(line: int, column: int) -> int:
        start, text = starts[line - 1]
        return start + len(text.encode()[:column].decode())

    return Item(place(node.lineno, node.col_offset), place(node.end_lineno, node.end_col_offset), node.value)
