"""Expressions over the dimensions, switches and lists of a `config.json`, as written in the family files.

Sizes (`heads * head_dim`, `2 * ffn if gated else ffn`) and conditions (`layer >= first_dense and layer % step == 0`,
`layer not in mlp_only_layers`, `layer_types[layer] == 'full_attention'`).
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Container, Mapping
from functools import cache
from typing import Any

OPERATORS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
COMPARISONS: Mapping[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda item, items: _is_in(item, items),
    ast.NotIn: lambda item, items: not _is_in(item, items),
}
ALLOWED = "names, whole numbers, quoted text, + - * // %, comparisons, in, and, or, not, x if c else y, list[index]"


def evaluate(expression: str | int, symbols: Mapping[str, Any]) -> int:
    """Value of a size.

    Raises:
        ValueError: something else than `ALLOWED`, an unknown name, or a value that is no whole number; all of them are
            faults of the family file.
    """
    value = expression if isinstance(expression, int) else _value(parsed(expression), symbols, expression)
    if type(value) is not int:
        raise ValueError(f"{expression!r} is {value!r}, no whole number")
    return value


def holds(condition: str, symbols: Mapping[str, Any]) -> bool:
    """Whether a condition is true.

    Raises:
        ValueError: as `evaluate`.
    """
    return bool(_value(parsed(condition), symbols, condition))


def check(expression: str | int, known: Container[str]) -> None:
    """Refuses an expression that could not be evaluated, without values.

    Raises:
        ValueError: something else than `ALLOWED`, or a name that is not known.
    """
    if not isinstance(expression, int):
        _check(parsed(expression), known, expression)


def names(expression: str | int) -> set[str]:
    """The names in an expression."""
    if isinstance(expression, int):
        return set()
    return {node.id for node in ast.walk(parsed(expression)) if isinstance(node, ast.Name)}


@cache
def parsed(expression: str) -> ast.expr:
    """Syntax tree. Few expressions are evaluated once per layer: parsing them again would dominate."""
    try:
        return ast.parse(expression, mode="eval").body
    except (SyntaxError, TypeError) as error:
        raise ValueError(f"{expression!r} is no expression") from error


def _is_in(item: Any, items: Any) -> bool:
    if not isinstance(items, list | tuple):
        raise ValueError(f"{items!r} is no list to look for {item!r} in")
    return item in items


def _value(node: ast.expr, symbols: Mapping[str, Any], text: str) -> Any:
    match node:
        case ast.Constant(value=value) if type(value) in (int, str):
            return value
        case ast.Name(id=name):
            if name not in symbols:
                raise ValueError(f"unknown dimension {name!r} in {text!r}")
            return symbols[name]
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
            return OPERATORS[type(op)](_value(left, symbols, text), _value(right, symbols, text))
        case ast.Compare(left=left, ops=ops, comparators=others) if all(type(op) in COMPARISONS for op in ops):
            values = [_value(side, symbols, text) for side in (left, *others)]
            return all(COMPARISONS[type(op)](a, b) for op, a, b in zip(ops, values, values[1:], strict=False))
        case ast.BoolOp(op=op, values=sides):
            joined = all if isinstance(op, ast.And) else any
            return joined(_value(side, symbols, text) for side in sides)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return not _value(operand, symbols, text)
        case ast.IfExp(test=test, body=body, orelse=other):
            return _value(body if _value(test, symbols, text) else other, symbols, text)
        case ast.Subscript(value=value, slice=index):
            items, place = _value(value, symbols, text), _value(index, symbols, text)
            if not isinstance(items, list | tuple) or type(place) is not int or not 0 <= place < len(items):
                raise ValueError(f"{text!r}: no item {place!r} in {items!r}")
            return items[place]
    raise ValueError(f"only {ALLOWED} are allowed in {text!r}")


def _check(node: ast.AST, known: Container[str], text: str) -> None:
    match node:
        case ast.Constant(value=value):
            fits = type(value) in (int, str)
        case ast.Name(id=name):
            if name not in known:
                raise ValueError(f"unknown dimension {name!r} in {text!r}")
            return
        case ast.BinOp(op=op):
            fits = type(op) in OPERATORS
        case ast.Compare(ops=ops):
            fits = all(type(op) in COMPARISONS for op in ops)
        case ast.UnaryOp(op=op):
            fits = isinstance(op, ast.Not)
        case _:
            fits = isinstance(node, ast.BoolOp | ast.IfExp | ast.Subscript)
    if not fits:
        raise ValueError(f"only {ALLOWED} are allowed in {text!r}")
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            _check(child, known, text)
