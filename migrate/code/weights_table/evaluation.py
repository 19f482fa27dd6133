"""Values of the table's expressions: arithmetic, comparisons and attributes of what is given; nothing is called."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

from mappings.errors import UserError

_OPERATORS: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}
_FUNCTIONS: Mapping[str, Callable[..., Any]] = {"int": int, "max": max, "min": min, "len": len, "bool": bool}


def value_of(expression: str, names: Mapping[str, Any]) -> Any:
    """Value of an expression of the table.

    Raises:
        UserError: a name is not given, or the expression needs more than arithmetic.
    """
    return _value(ast.parse(expression, mode="eval").body, names, expression)


def _value(node: ast.expr, names: Mapping[str, Any], text: str) -> Any:
    def of(inner: ast.expr) -> Any:
        return _value(inner, names, text)

    match node:
        case ast.Constant():
            return node.value
        case ast.Name() if node.id in names:
            return names[node.id]
        case ast.Attribute():
            base = of(node.value)
            if isinstance(base, Mapping) and node.attr in base:
                return base[node.attr]
            if hasattr(base, node.attr):
                return getattr(base, node.attr)
        case ast.BinOp() if type(node.op) in _OPERATORS:
            return _OPERATORS[type(node.op)](of(node.left), of(node.right))
        case ast.Compare() if len(node.ops) == 1 and type(node.ops[0]) in _OPERATORS:
            return _OPERATORS[type(node.ops[0])](of(node.left), of(node.comparators[0]))
        case ast.UnaryOp(op=ast.Not()):
            return not of(node.operand)
        case ast.UnaryOp(op=ast.USub()):
            return -of(node.operand)
        case ast.BoolOp(op=ast.And()):
            return all(of(value) for value in node.values)
        case ast.BoolOp():
            return any(of(value) for value in node.values)
        case ast.IfExp():
            return of(node.body if of(node.test) else node.orelse)
        case ast.Subscript():
            return of(node.value)[of(node.slice)]
        case ast.Tuple() | ast.List():
            return [of(element) for element in node.elts]
        case ast.Call(func=ast.Name(id=name)) if name in _FUNCTIONS and not node.keywords:
            return _FUNCTIONS[name](*map(of, node.args))
    raise UserError(f"{text}: the value of {ast.unparse(node)} is not known")
