"""Shapes of tensors that a constructor makes, read off the expression."""

from __future__ import annotations

import ast
from collections.abc import Sequence

import libcst as cst

from migrate.code.names.resolve import Resolver
from migrate.code.weights_table.symbolic import Scope, UnknownError, text

_BY_SIZE = frozenset(f"torch.{name}" for name in ("zeros", "ones", "empty", "rand", "randn"))
_LIKE_FIRST = frozenset(
    f"torch.{name}"
    for name in ("zeros_like", "ones_like", "empty_like", "rand_like", "randn_like", "full_like", "tril", "triu", "abs")
)
_KEEP = frozenset(
    """
        float double half bfloat16 long int bool to clone detach contiguous normal_ uniform_ fill_ zero_ mul_ add_ div_
        requires_grad_ tril triu cos sin exp
    """.split()  # noqa: SIM905 (many quotes are harder to read)
)
"""Methods whose result has the shape of the tensor."""


def tensor_shape(node: cst.BaseExpression, scope: Scope, resolver: Resolver) -> tuple[str, ...] | None:
    """The shape of a tensor expression as source texts; None if it cannot be read off.

    Raises:
        UnknownError: a size uses a name with several values.
    """
    if isinstance(node, cst.BinaryOperation):
        sides = [tensor_shape(side, scope, resolver) for side in (node.left, node.right)]
        numbers = [_is_number(side) for side in (node.left, node.right)]
        return sides[0] if numbers[1] else sides[1] if numbers[0] else None
    if isinstance(node, cst.UnaryOperation):
        return tensor_shape(node.expression, scope, resolver)
    if not isinstance(node, cst.Call):
        return None
    name = resolver.torch_name(node.func)
    positional = [arg.value for arg in node.args if arg.keyword is None and not arg.star]
    if name in _BY_SIZE:
        size = next((a.value for a in node.args if a.keyword and a.keyword.value == "size"), None)
        return _sizes([size] if size is not None else positional, scope)
    if name == "torch.full" and positional:
        return _sizes(positional[:1], scope)
    if name in _LIKE_FIRST and positional:
        return tensor_shape(positional[0], scope, resolver)
    if name == "torch.arange" and len(positional) == 1:
        return _sizes(positional, scope)
    if name == "torch.eye" and positional:
        return _sizes([positional[0], positional[min(1, len(positional) - 1)]], scope)
    if name == "torch.tensor" and positional:
        return _literal(ast.parse(cst.Module([]).code_for_node(positional[0]), mode="eval").body)
    if name is None and isinstance(node.func, cst.Attribute):
        method = node.func.attr.value
        if method in _KEEP:
            return tensor_shape(node.func.value, scope, resolver)
        if method in ("view", "reshape") and tensor_shape(node.func.value, scope, resolver) is not None:
            sizes = _sizes(positional, scope)
            return None if sizes is None or any(size.startswith("-") for size in sizes) else sizes
    return None


def _sizes(nodes: Sequence[cst.BaseExpression], scope: Scope) -> tuple[str, ...] | None:
    """`(2, n)` given as two arguments or as one tuple; a single name may be a number or a shape, and is a number."""
    trees = [scope.expression(node) for node in nodes]
    if len(trees) == 1 and isinstance(trees[0], ast.Tuple | ast.List):
        trees = list(trees[0].elts)
    if any(isinstance(tree, ast.Starred) for tree in trees):
        raise UnknownError("the number of axes is not known")
    return tuple(text(tree) for tree in trees)


def _literal(tree: ast.expr) -> tuple[str, ...] | None:
    if isinstance(tree, ast.List | ast.Tuple):
        inner = _literal(tree.elts[0]) if tree.elts else ()
        return None if inner is None else (str(len(tree.elts)), *inner)
    return () if isinstance(tree, ast.Constant | ast.UnaryOp) else None


def _is_number(node: cst.BaseExpression) -> bool:
    """A literal, or a call of `math`; anything else may broadcast the other side."""
    if isinstance(node, cst.BinaryOperation):
        return _is_number(node.left) and _is_number(node.right)
    if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
        return isinstance(node.func.value, cst.Name) and node.func.value.value == "math"
    return isinstance(node, cst.Integer | cst.Float)
