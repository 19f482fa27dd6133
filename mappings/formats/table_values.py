"""Values of the expressions in a table of weights: arithmetic, comparisons, attributes of what is given.

Nothing of the repository that the table is about is run.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from mappings.errors import UserError


def _power(base: Any, exponent: Any) -> Any:
    """A size is small; a text that is not must not take the memory of the machine."""
    if abs(exponent) > 64 or abs(base) > 2**32:
        raise ArithmeticError(f"{base} ** {exponent} is no size")
    return base**exponent


_OPERATORS: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: _power,
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
        UserError: a name is not given, the expression needs more than arithmetic, or it has no value.
    """
    try:
        return _value(ast.parse(expression, mode="eval").body, names, expression)
    except (ArithmeticError, LookupError, TypeError, ValueError, SyntaxError) as error:
        raise UserError(f"{expression}: has no value ({type(error).__name__}: {error})") from error


def every(
    names: Sequence[str], when: Sequence[str], repeated: Mapping[str, str], values: Mapping[str, Any]
) -> list[tuple[tuple[str, ...], dict[str, Any]]]:
    """Names that go together, once for every value of the indices in them under which all conditions hold.

    Args:
        names: with indices in braces: `layers.{i}.weight`.
        when: conditions over the values and the indices.
        repeated: index -> how many values it has.
        values: of the names in expressions.

    Returns:
        The names without braces, and the values together with those of the indices.

    Raises:
        UserError: see `value_of`.
    """
    indices = [index for index in repeated if any(f"{{{index}}}" in name for name in names)]
    found = [(tuple(names), dict(values))]
    # A count may be meaningless where a condition does not hold (`range(None)`): conditions come as early as they can.
    waiting = list(when)
    for step, index in enumerate([*indices, None]):
        unknown = set(indices[step:])
        now = [condition for condition in waiting if not unknown & _names_in(condition)]
        waiting = [condition for condition in waiting if condition not in now]
        found = [(text, here) for text, here in found if all(value_of(condition, here) for condition in now)]
        if index is not None:
            found = [
                (tuple(name.replace(f"{{{index}}}", str(number)) for name in text), {**here, index: number})
                for text, here in found
                for number in range(int(value_of(repeated[index], here)))
            ]
    return found


def lacking(expressions: Iterable[str], names: Mapping[str, Any]) -> list[str]:
    """What expressions ask for and `names` does not give: names, and attributes of given mappings (`config.n_embd`).

    Args:
        expressions: of the table.
        names: what is given.
    """
    found: dict[str, None] = {}
    for expression in expressions:
        for node in ast.walk(ast.parse(expression, mode="eval")):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                base = names.get(node.value.id)
                if isinstance(base, Mapping) and node.attr not in base and not hasattr(base, node.attr):
                    found[ast.unparse(node)] = None
            elif isinstance(node, ast.Name) and node.id not in {*names, *_FUNCTIONS}:
                found[node.id] = None
    return list(found)


def _names_in(expression: str) -> set[str]:
    return {node.id for node in ast.walk(ast.parse(expression, mode="eval")) if isinstance(node, ast.Name)}


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
            if not node.attr.startswith("__") and hasattr(base, node.attr):
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
