"""Whose memory the value of an expression may be: views, rows and slices, other names, what functions give back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import libcst as cst

from migrate.code.context import FileContext, code_of
from migrate.code.dataflow.called import argument, called_functions
from migrate.code.names.symbols import FunctionInfo
from migrate.code.trees.walk import walk

VIEWS = frozenset(
    {
        "view", "view_as", "reshape", "reshape_as", "transpose", "swapaxes", "swapdims", "permute", "movedim",
        "moveaxis", "t", "adjoint", "expand", "expand_as", "broadcast_to", "squeeze", "unsqueeze", "flatten", "ravel",
        "unflatten", "chunk", "split", "tensor_split", "hsplit", "vsplit", "unbind", "narrow", "select", "diagonal",
        "unfold", "as_strided", "real", "imag", "view_as_real", "view_as_complex", "detach",
    }
)  # fmt: skip
"""Methods and functions of torch whose result shares the memory; MindSpore's copies, or views without gradient."""
DETACHED = frozenset({"mT", "real", *(f"torch.{name}" for name in VIEWS)})
"""Views whose counterpart in MindSpore has a memory of its own: not even the values reach the original."""
SAME = frozenset(
    {"contiguous", "to", "type", "type_as", "float", "half", "double", "bfloat16", "long", "int", "bool", "cpu", "cuda"}
)
"""Methods that give the tensor itself where nothing has to change."""
_VIEW_ATTRIBUTES = frozenset({"T", "mT", "H", "mH", "real", "imag"})
HELD = ""
"""Stands for a holder without a name: an attribute, a container, what a loop goes over."""


@dataclass(frozen=True)
class Root:
    """A tensor that an expression shares: a local name or `HELD`."""

    name: str
    view: str | None = None
    """The method that makes a view of it, unless it is a row or slice."""
    part: bool = False
    """Whether it is a row or slice."""


def roots(context: FileContext, node: cst.BaseExpression | None, view: str | None = None) -> Iterator[Root]:
    """The tensors whose memory the value of an expression may be."""
    match node:
        case cst.Name():
            yield Root(node.value, view)
        case cst.Attribute():
            if not context.type_of(node.value).is_tensor:
                yield Root(HELD, view)
            elif node.attr.value == "data" or node.attr.value in _VIEW_ATTRIBUTES:
                changed = node.attr.value if node.attr.value in _VIEW_ATTRIBUTES else None
                yield from roots(context, node.value, view or changed)
        case cst.Subscript():
            if not context.type_of(node.value).is_tensor:
                yield Root(HELD, view)
            elif not is_picked(context, node):
                yield from (replace(root, part=True) for root in roots(context, node.value, view))
        case cst.Call():
            yield from _call_roots(context, node, view)
        case cst.IfExp():
            yield from roots(context, node.body, view)
            yield from roots(context, node.orelse, view)
        case cst.BooleanOperation():
            yield from roots(context, node.left, view)
            yield from roots(context, node.right, view)
        case cst.NamedExpr():
            yield from roots(context, node.value, view)
        case cst.Tuple() | cst.List() | cst.Set():
            for element in node.elements:
                yield from roots(context, element.value, view)
        case cst.Dict():
            for pair in node.elements:
                yield from roots(context, pair.value, view)


def _call_roots(context: FileContext, node: cst.Call, view: str | None) -> Iterator[Root]:
    if name := context.torch_name(node.func):
        last = name.rpartition(".")[2]
        if last in VIEWS and node.args:
            yield from roots(context, node.args[0].value, view or f"torch.{last}")
    elif isinstance(node.func, cst.Attribute) and context.type_of(node.func.value).is_tensor:
        method = node.func.attr.value
        if method in VIEWS:
            yield from roots(context, node.func.value, view or method)
        elif method in SAME or method.endswith("_"):
            yield from roots(context, node.func.value, view)
    else:
        for function in called_functions(context, node):
            yield from _returned_roots(context, function, node, view)


def _returned_roots(context: FileContext, function: FunctionInfo, call: cst.Call, view: str | None) -> Iterator[Root]:
    """What a function gives back of what it was given or of what its object holds."""
    parameters = {p.name.value for p in function.parameters}
    rebound = {t.target.value for t in walk(function.node.body) if isinstance(t, cst.AssignTarget | cst.AugAssign)
               and isinstance(t.target, cst.Name)}  # fmt: skip
    for statement in walk(function.node.body, skip=(cst.FunctionDef, cst.Lambda)):
        value = statement.value if isinstance(statement, cst.Return) else None
        if isinstance(value, cst.Attribute):
            yield Root(HELD, view)
        elif isinstance(value, cst.Name) and value.value in parameters - rebound:
            given = argument(function, value.value, call)
            if given is not call:
                yield from roots(context, given, view)


def are_apart(first: cst.BaseExpression, second: cst.BaseExpression) -> bool:
    """Whether two slices certainly have no element in common: `y[0]` and `y[1]`, `y[:n]` and `y[n:]`."""
    if not isinstance(first, cst.Subscript) or not isinstance(second, cst.Subscript):
        return False
    pairs = zip(first.slice, second.slice, strict=False)
    return any(_is_apart(a.slice, b.slice) or _is_apart(b.slice, a.slice) for a, b in pairs)


def _is_apart(first: cst.BaseSlice, second: cst.BaseSlice) -> bool:
    if isinstance(first, cst.Index) and isinstance(second, cst.Index):
        numbers = [index.value for index in (first, second) if isinstance(index.value, cst.Integer)]
        return len(numbers) == 2 and numbers[0].evaluated_value != numbers[1].evaluated_value
    if isinstance(first, cst.Slice) and isinstance(second, cst.Slice) and first.upper and second.lower:
        return first.step is None and second.step is None and code_of(first.upper) == code_of(second.lower)
    return False


def write_into(target: cst.Name | cst.Subscript, value: cst.BaseExpression) -> cst.Assign:
    """`x[()] = value`: `()` leaves no axis out, so it is the one index that tensors of any rank take.

    MindSpore gives a tensor assigned with `...` a new memory, which rows taken before do not see.
    """
    index = cst.SubscriptElement(cst.Index(cst.Tuple([])))
    return cst.Assign([cst.AssignTarget(cst.Subscript(target, [index]))], value)


def is_picked(context: FileContext, node: cst.Subscript) -> bool:
    """Whether an index picks elements (a mask, a list, a tensor of positions): the result is a copy in torch."""
    for element in node.slice:
        if isinstance(element.slice, cst.Index):
            index = element.slice.value
            if isinstance(index, cst.List | cst.Comparison) or context.type_of(index).is_tensor:
                return True
    return False


__all__ = ["DETACHED", "HELD", "SAME", "VIEWS", "Root", "are_apart", "is_picked", "roots", "write_into"]
