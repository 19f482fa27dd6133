"""Calls of models by a name, in the text of the output, and what makes one a graph between operations of a tape."""

from __future__ import annotations

import ast
from collections.abc import Iterable

HELPER = "graph_call"
"""The helper that makes a call a graph."""
_FUNCTION, _TAPE = "as_graph", "tape"


def model_calls(text: str) -> dict[int, list[str]]:
    """The dotted names that each line calls."""
    found: dict[int, list[str]] = {}
    for call in _calls(ast.parse(text)):
        found.setdefault(call.lineno, []).append(ast.unparse(call.func))
    return found


def with_graphs(text: str, calls: Iterable[tuple[int, str]]) -> str:
    """The text with `graph_call.as_graph(name)(...)` for `name(...)`; a second time changes nothing.

    Args:
        text: of a file that imports `tape` from `ms_compat`.
        calls: line and name.
    """
    wanted, tree = set(calls), ast.parse(text)
    edits: list[tuple[int, int, str]] = []
    for call in _calls(tree):
        if (call.lineno, ast.unparse(call.func)) in wanted:
            assert call.func.end_lineno is not None and call.func.end_col_offset is not None
            edits.append((call.func.lineno, call.func.col_offset, f"{HELPER}.{_FUNCTION}("))
            edits.append((call.func.end_lineno, call.func.end_col_offset, ")"))
    if edits:
        edits += _import(tree)
    lines = text.splitlines(keepends=True)
    for line, column, new in sorted(edits, reverse=True):
        row = lines[line - 1].encode()
        lines[line - 1] = (row[:column] + new.encode() + row[column:]).decode()
    return "".join(lines)


def _import(tree: ast.Module) -> list[tuple[int, int, str]]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom) or (node.module or "").rpartition(".")[2] != "ms_compat":
            continue
        names = [alias.name for alias in node.names]
        if HELPER in names:
            return []
        if _TAPE in names:
            place = next(alias for alias in node.names if alias.name > HELPER)
            return [(place.lineno, place.col_offset, f"{HELPER}, ")]
    raise AssertionError("a file with losses that go back through a tape imports it")


def _calls(tree: ast.Module) -> list[ast.Call]:
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and _is_name(node.func)]
    return sorted(calls, key=lambda call: (call.lineno, call.col_offset))


def _is_name(node: ast.expr) -> bool:
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name)
