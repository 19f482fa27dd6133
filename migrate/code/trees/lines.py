"""Line numbers of nodes, worked out where they are asked for: libcst's positions of a file cost as much as parsing."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator, Mapping

import libcst as cst
from libcst.metadata import CodeRange, MetadataWrapper, PositionProvider

from migrate.code.trees.walk import children

_Statement = (cst.BaseSmallStatement, cst.BaseCompoundStatement)
_Bodies = (cst.BaseSuite, cst.Else, cst.Finally, cst.ExceptHandler, cst.ExceptStarHandler, cst.MatchCase)


class Lines:
    """Lines of one file. Python's own parser gives those of the statements; both parsers see them in the same order."""

    def __init__(self, tree: cst.Module, text: str) -> None:
        self._tree, self._text = tree, text
        self._inside: dict[cst.CSTNode, dict[cst.CSTNode, int]] = {}
        """Of a statement of several lines: the nodes with their lines, counted from its first."""

    def of(self, node: cst.CSTNode) -> int:
        """Line on which a node of the tree begins, from 1."""
        if isinstance(node, cst.SimpleStatementLine):
            node = node.body[0]
        found = self._statements.get(node)
        if found is None:
            return int(self._positions[node].start.line)
        statement, line, is_one_line = found
        if node is statement or is_one_line:
            return line
        if statement not in self._inside:
            alone = _without_body(statement)
            around = MetadataWrapper(cst.Module([alone]), unsafe_skip_copy=True).resolve(PositionProvider)
            first = around[alone].start.line
            self._inside[statement] = {inner: place.start.line - first for inner, place in around.items()}
        return line + self._inside[statement][node]

    @functools.cached_property
    def _statements(self) -> Mapping[cst.CSTNode, tuple[cst.CSTNode, int, bool]]:
        """Node -> the statement whose own text it is part of, that one's line, whether it is one line."""
        try:
            lines = [(s.lineno, s.lineno == s.end_lineno) for s in _in_order(ast.parse(self._text))]
        except (SyntaxError, ValueError):  # the text of another Python
            return {}
        found: dict[cst.CSTNode, tuple[cst.CSTNode, int, bool]] = {}
        remaining = iter(lines)
        pending: list[tuple[cst.CSTNode, cst.CSTNode | None]] = [(self._tree, None)]
        while pending:
            node, statement = pending.pop()
            if isinstance(node, _Statement):
                line = next(remaining, None)
                if line is None:
                    return {}
                statement = node
                found[node] = (node, *line)
            elif isinstance(node, _Bodies):
                statement = None
            elif statement is not None:
                found[node] = (statement, *found[statement][1:])
            pending += [(child, statement) for child in reversed(children(node))]
        return found if next(remaining, None) is None else {}

    @functools.cached_property
    def _positions(self) -> Mapping[cst.CSTNode, CodeRange]:
        return MetadataWrapper(self._tree, unsafe_skip_copy=True).resolve(PositionProvider)


def _in_order(node: ast.AST) -> Iterator[ast.stmt]:
    """Statements below a node in the order of the text."""
    for name in ("body", "handlers", "cases", "orelse", "finalbody"):
        below = getattr(node, name, ())
        for child in below if isinstance(below, list) else ():
            if isinstance(child, ast.stmt):
                yield child
            yield from _in_order(child)


def _without_body(statement: cst.CSTNode) -> cst.SimpleStatementLine | cst.BaseCompoundStatement:
    if isinstance(statement, cst.BaseSmallStatement):
        return cst.SimpleStatementLine([statement])
    assert isinstance(statement, cst.BaseCompoundStatement)
    changes: dict[str, object] = {"body": cst.SimpleStatementSuite([cst.Pass()])}
    if hasattr(statement, "orelse"):
        changes["orelse"] = None
    return statement.with_changes(**changes) if hasattr(statement, "body") else statement


__all__ = ["Lines"]
