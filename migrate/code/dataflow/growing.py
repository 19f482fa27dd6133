"""What gives every step of a generation loop another shape, or another number: each would be another graph."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.code.context import FileContext, code_of
from migrate.code.dataflow import dataflow
from migrate.code.dataflow.generation_loops import GenerationStep
from migrate.code.trees.dotted import dotted
from migrate.code.trees.walk import walk

_JOINS = frozenset({"cat", "concat", "concatenate", "hstack", "vstack"})


def changing_argument(context: FileContext, step: GenerationStep) -> tuple[cst.CSTNode, str] | None:
    """The place and the reason: an argument that grows, or a Python number that changes, with every step."""
    if not step.is_direct:
        return None  # which arguments the function hands on is left to the run
    assigned = dict(_assigned(step.loop.body))
    counters = dataflow.writes(cst.AssignTarget(step.loop.target)) if isinstance(step.loop, cst.For) else set()
    for arg in step.call.args:
        value = arg.value
        if isinstance(value, cst.Name):
            grown = _joined(assigned.get(value.value), value.value)
            if grown is not None:
                return grown, f"{value.value} grows at every step: {code_of(grown)}"
            if context.type_of(value).kind == "number" and value.value in counters | set(assigned):
                return value, f"{value.value} is a Python number that changes at every step"
        elif isinstance(value, cst.Subscript) and (name := _grows_from_start(value)) and name in counters:
            return value, f"{code_of(value)} grows at every step"
    return None


def growing_state(body: cst.CSTNode) -> cst.Call | None:
    """The call that joins what an object holds with something new, where the function then stores the result there."""
    stored = {name for node in walk(body) if isinstance(node, cst.AssignTarget) and (name := _holder(node.target))}
    for node in walk(body):
        if isinstance(node, cst.Call) and _is_join(node):
            parts = set().union(*(_held(arg.value) for arg in node.args), set())
            if parts & stored:
                return node
    return None


def _assigned(block: cst.CSTNode) -> Iterable[tuple[str, cst.BaseExpression]]:
    for node in walk(block):
        if isinstance(node, cst.Assign):
            for target in node.targets:
                if isinstance(target.target, cst.Name):
                    yield target.target.value, node.value
        elif isinstance(node, cst.AugAssign) and isinstance(node.target, cst.Name):
            yield node.target.value, node.value


def _joined(value: cst.BaseExpression | None, name: str) -> cst.Call | None:
    """`torch.cat((x, new))` as the value of `x`; what is cut from it has another length."""
    if not isinstance(value, cst.Call) or not _is_join(value) or not value.args:
        return None
    parts = value.args[0].value
    elements = parts.elements if isinstance(parts, cst.Tuple | cst.List) else ()
    return value if any(isinstance(e.value, cst.Name) and e.value.value == name for e in elements) else None


def _is_join(call: cst.Call) -> bool:
    return (dotted(call.func) or "").rpartition(".")[2] in _JOINS


def _grows_from_start(value: cst.Subscript) -> str | None:
    """The name behind the colon of `x[:, :name]`."""
    for element in value.slice:
        part = element.slice
        if isinstance(part, cst.Slice) and part.lower is None and isinstance(part.upper, cst.Name):
            return part.upper.value
    return None


def _holder(node: cst.BaseExpression) -> str | None:
    """`self.keys` of `self.keys`, `self.keys[i]` and `self.keys[i][0]`."""
    while isinstance(node, cst.Subscript):
        node = node.value
    return dotted(node) if isinstance(node, cst.Attribute) else None


def _held(value: cst.BaseExpression) -> set[str]:
    return {name for node in walk(value) if isinstance(node, cst.Attribute) and (name := dotted(node))}


__all__ = ["changing_argument", "growing_state"]
