"""Binding of a call's arguments to a torch signature, the way torch's own argument parser does it."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass

import libcst as cst

from mappings.api import Row

# torch takes numpy's words for these parameters everywhere.
SYNONYMS = {"axis": "dim", "keepdims": "keepdim", "x": "input", "x2": "other"}


@dataclass(frozen=True)
class Refusal:
    """Why a call cannot be converted; one sentence for the user."""

    reason: str


@dataclass
class Bound:
    """Arguments by torch parameter."""

    values: dict[str, cst.Arg]
    defaults: dict[str, str]
    varargs_name: str | None
    varargs: tuple[cst.Arg, ...] | None = None
    """Arguments of the varargs parameter; None when the signature has none."""
    given: tuple[cst.Arg, ...] = ()
    """All arguments of the call in their order."""

    def default(self, name: str) -> str | None:
        """Source text of torch's default, None when the parameter is required."""
        return self.defaults.get(name)


def bind(row: Row, args: Sequence[cst.Arg]) -> Bound | Refusal:
    """Bind `args` to the row's signature and check its `when` conditions."""
    if row.signature is None:
        return Bound({}, {}, None) if not args else Refusal(f"{row.name} is not a function")
    parameters = list(row.signature.parameters.values())
    kinds = inspect.Parameter
    positional = [p.name for p in parameters if p.kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)]
    by_keyword = {p.name for p in parameters if p.kind in (kinds.KEYWORD_ONLY, kinds.POSITIONAL_OR_KEYWORD)}
    varargs_name = next((p.name for p in parameters if p.kind is kinds.VAR_POSITIONAL), None)
    defaults = {p.name: p.default for p in parameters if p.default is not kinds.empty}
    bound = Bound({}, defaults, varargs_name, None if varargs_name is None else (), tuple(args))

    extra: list[cst.Arg] = []
    for arg in args:
        if arg.star == "**":
            return Refusal(f"{row.name} is called with **{_code(arg.value)}; which arguments it gives is unknown")
        if arg.keyword is not None:
            name = arg.keyword.value
            if name == varargs_name:
                extra.append(arg)
                continue
            if name not in by_keyword and SYNONYMS.get(name) in by_keyword:
                name = SYNONYMS[name]
            if name not in by_keyword:
                return Refusal(f"{row.name} has no argument {arg.keyword.value} in this form")
            if name in bound.values:
                return Refusal(f"{row.name} gets {name} twice")
            bound.values[name] = arg
        elif len(bound.values) < len(positional) and not extra:
            name = positional[len(bound.values)]
            if arg.star:
                return Refusal(f"{row.name} is called with *{_code(arg.value)}; how many arguments it gives is unknown")
            bound.values[name] = arg
        elif varargs_name is not None:
            extra.append(arg)
        else:
            return Refusal(f"{row.name} takes {len(positional)} positional arguments in this form, not more")
    if varargs_name is not None:
        bound.varargs = _flattened(extra)
    for parameter in parameters:
        required = parameter.default is kinds.empty and parameter.kind is not kinds.VAR_POSITIONAL
        if required and parameter.name not in bound.values:
            return Refusal(f"{row.name} needs {parameter.name} in this form")
    return _check_conditions(row, bound) or bound


_INTEGER_TYPES = frozenset(
    {"bool", "bool_", "uint8", "int8", "int16", "int32", "int64", "byte", "char", "short", "int", "long"}
)
"""Last parts of the names of data types without gradients, torch's and MindSpore's."""


def _flattened(varargs: list[cst.Arg]) -> tuple[cst.Arg, ...]:
    """A call that passes one tuple or list literal for a varargs parameter means its elements."""
    if len(varargs) == 1 and not varargs[0].star and isinstance(varargs[0].value, cst.Tuple | cst.List):
        elements = varargs[0].value.elements
        return tuple(cst.Arg(e.value, star="*" if isinstance(e, cst.StarredElement) else "") for e in elements)
    return tuple(varargs)


def _check_conditions(row: Row, bound: Bound) -> Refusal | None:
    for name, condition in row.when.items():
        given = name in bound.values or (name == bound.varargs_name and bool(bound.varargs))
        if condition == "absent":
            holds = not given
        elif condition == "given":
            holds = given
        elif condition == "literal":
            holds = name in bound.values and is_literal(bound.values[name].value)
        else:
            holds = name in bound.values and _code(bound.values[name].value).split(".")[-1] in _INTEGER_TYPES
        if not holds:
            word = {"literal": "a literal", "integer type": "an integer type or bool"}.get(condition, condition)
            return Refusal(f"{row.name}: this form needs {name} to be {word}")
    return None


def is_literal(node: cst.BaseExpression) -> bool:
    """A number (also negated), a string, True, False, None, or a tuple or list of these."""
    if isinstance(node, cst.UnaryOperation):
        return isinstance(node.operator, cst.Minus | cst.Plus) and is_literal(node.expression)
    if isinstance(node, cst.Name):
        return node.value in ("True", "False", "None")
    if isinstance(node, cst.Tuple | cst.List):
        return all(isinstance(e, cst.Element) and is_literal(e.value) for e in node.elements)
    return isinstance(node, cst.Integer | cst.Float | cst.SimpleString)


def _code(node: cst.CSTNode) -> str:
    return cst.Module([]).code_for_node(node)
