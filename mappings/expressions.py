"""Integer arithmetic over named dimensions, as written in the family files (`heads * head_dim`, `hidden // heads`)."""

from __future__ import annotations

import ast
import operator
from collections.abc import Mapping
from functools import cache

OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv}


def evaluate(expression: str | int, symbols: Mapping[str, int]) -> int:
    """Value of an expression of names, whole numbers and `+ - * //`.

    Raises:
        ValueError: anything else in the expression, or an unknown name; both are faults of the family file.
    """
    if isinstance(expression, int):
        return expression
    return _value(_parsed(expression), symbols, expression)


@cache
def _parsed(expression: str) -> ast.expr:
    """Few expressions, evaluated once per layer: parsing them again would dominate."""
    try:
        return ast.parse(expression, mode="eval").body
    except SyntaxError as error:
        raise ValueError(f"{expression!r} is no expression") from error


def _value(node: ast.expr, symbols: Mapping[str, int], text: str) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.Name):
        if node.id not in symbols:
            raise ValueError(f"unknown dimension {node.id!r} in {text!r}")
        return symbols[node.id]
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        return OPERATORS[type(node.op)](_value(node.left, symbols, text), _value(node.right, symbols, text))
    raise ValueError(f"only names, whole numbers and + - * // are allowed in {text!r}")
