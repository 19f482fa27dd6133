"""A number of a forward method as the constructor can write it where it makes a layer."""

from __future__ import annotations

import libcst as cst

from migrate.code.context import code_of
from migrate.code.shard.layers import ClassLayers, LayerInfo, assignments
from migrate.code.shard.record import Term
from migrate.code.trees.walk import walk

MAX_STEPS = 12


def constructor_text(term: Term, layer: LayerInfo, layers: ClassLayers) -> str | None:
    """The source of a number at the place of the layer's call in its constructor; None if it is not known there."""
    if layers.init is None:
        return None
    method = next((m for m in layers.info.methods.values() if m.name == term.within), None)
    if method is None and term.within is not None:
        return None
    in_constructor = method is None or method is layers.init
    local = {} if in_constructor or method is None else _locals(method.node)
    return _text(term.node, layer, layers, local, in_constructor, 0)


def _text(
    node: cst.BaseExpression,
    layer: LayerInfo,
    layers: ClassLayers,
    local: dict[str, cst.BaseExpression],
    in_constructor: bool,
    depth: int,
) -> str | None:
    if depth > MAX_STEPS:
        return None

    def inner(part: cst.BaseExpression, constructor: bool = in_constructor) -> str | None:
        return _text(part, layer, layers, local, constructor, depth + 1)

    match node:
        case cst.Integer():
            return node.value
        case cst.Name():
            if not in_constructor:
                if node.value in local:
                    return inner(local[node.value])
                return node.value if layers.info.resolver.qualified(node) is not None else None
            parameters = {p.name.value for p in layers.init.parameters} if layers.init else set()
            known = node.value in parameters or layers.info.resolver.qualified(node) is not None
            if known or (node.value in layers.locals and _is_before(layers.locals[node.value], layer)):
                return node.value
            return None
        case cst.Attribute():
            return _attribute(node, layer, layers, inner)
        case cst.BinaryOperation():
            left, right = inner(node.left), inner(node.right)
            if left is None or right is None:
                return None
            operator = code_of(node.operator)
            return f"{_grouped(node.left, left)} {operator.strip()} {_grouped(node.right, right)}"
    return None


def _attribute(node: cst.Attribute, layer: LayerInfo, layers: ClassLayers, inner) -> str | None:  # type: ignore[no-untyped-def]
    if isinstance(node.value, cst.Name) and node.value.value == "self":
        name = node.attr.value
        line = layers.definition_lines.get(name)
        if name not in layers.definitions or line is None:
            return None
        if line < layer.line:
            return f"self.{name}"
        text = inner(layers.definitions[name], True)
        return None if text is None else text
    base = inner(node.value)
    return None if base is None else f"{base}.{node.attr.value}"


def _grouped(node: cst.BaseExpression, text: str) -> str:
    return f"({text})" if " " in text else text


def _is_before(node: cst.BaseExpression, layer: LayerInfo) -> bool:
    return layer.file.line(node) < layer.line


def _locals(function: cst.FunctionDef) -> dict[str, cst.BaseExpression]:
    """Local variables that are assigned once."""
    counts: dict[str, int] = {}
    values: dict[str, cst.BaseExpression] = {}
    for target, value in assignments(function):
        for name in walk(target):
            if isinstance(name, cst.Name):
                counts[name.value] = counts.get(name.value, 0) + 1
        if isinstance(target, cst.Name) and value is not None:
            values[target.value] = value
    return {name: value for name, value in values.items() if counts[name] == 1}
