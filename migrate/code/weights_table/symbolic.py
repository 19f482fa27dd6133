"""Expressions of a constructor in the words of whoever calls it: arguments and attributes put in, nothing run."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field

import libcst as cst

_EMPTY = cst.Module([])


class UnknownError(Exception):
    """What an expression is cannot be said without running the program."""


@dataclass
class Scope:
    """What names and attributes of `self` stand for inside a constructor; None where several values are assigned."""

    names: dict[str, ast.expr | None] = field(default_factory=dict)
    attributes: dict[str, ast.expr | None] = field(default_factory=dict)
    self_name: str = "self"

    def expression(self, node: cst.BaseExpression) -> ast.expr:
        """A node of the repository in the caller's words.

        Raises:
            UnknownError: it uses a name that has several values.
        """
        return self.put_in(ast.parse(_EMPTY.code_for_node(node).strip(), mode="eval").body)

    def put_in(self, tree: ast.expr) -> ast.expr:
        """The same for an expression that is parsed already; `tree` is changed."""
        result: ast.expr = _PutIn(self).visit(tree)
        return result


class _PutIn(ast.NodeTransformer):
    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self._value(node.id, self._scope.names, node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        if isinstance(node.value, ast.Name) and node.value.id == self._scope.self_name:
            return self._value(node.attr, self._scope.attributes, node)
        node.value = self.visit(node.value)
        return node

    def _value(self, name: str, values: Mapping[str, ast.expr | None], node: ast.expr) -> ast.expr:
        if name not in values:
            return node
        value = values[name]
        if value is None:
            raise UnknownError(f"{name} has several values")
        return value


def text(tree: ast.expr) -> str:
    """Source text; arithmetic of whole numbers is worked out."""
    return ast.unparse(_folded(tree))


def truth(tree: ast.expr) -> bool | None:
    """What a condition is, None if that depends on the arguments."""
    return bool(tree.value) if isinstance(tree, ast.Constant) else None


def _folded(tree: ast.expr) -> ast.expr:
    if isinstance(tree, ast.BinOp):
        left, right = _folded(tree.left), _folded(tree.right)
        if isinstance(left, ast.Constant) and isinstance(right, ast.Constant):
            a, b = left.value, right.value
            if type(a) is int and type(b) is int:
                done = _arithmetic(tree.op, a, b)
                if done is not None:
                    return ast.Constant(done)
        return ast.BinOp(left, tree.op, right)
    return tree


def _arithmetic(op: ast.operator, a: int, b: int) -> int | None:
    if isinstance(op, ast.Add):
        return a + b
    if isinstance(op, ast.Sub):
        return a - b
    if isinstance(op, ast.Mult):
        return a * b
    return a // b if isinstance(op, ast.FloorDiv) and b else None
