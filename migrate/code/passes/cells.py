"""Modules become cells: `forward` is `construct`, `super().__init__()` comes first."""

from __future__ import annotations

import libcst as cst
import libcst.matchers as m

from migrate.code.context import FileContext
from migrate.code.passes.base import Pass

FUNCTION = "torch.autograd.Function"


_CELL_MEMBERS = frozenset(
    {
        "add_flags", "bprop", "cast_inputs", "cells", "cells_and_names", "cls_name", "compile_cache", "compile_phase",
        "compiled", "construct", "exist_names", "exist_objs", "get_inputs", "get_parameters", "get_scope", "has_bprop",
        "insert_child_to_cell", "insert_param_to_cell", "mixed_precision_type", "name_cells", "offload", "param_prefix",
        "parameters_and_names", "parameters_dict", "phase", "phase_cache", "recompute", "run_construct", "set_grad",
        "set_inputs", "set_train", "shard", "to_float", "trainable_params", "untrainable_params",
    }
)  # fmt: skip
"""Members that MindSpore's Cell calls or sets itself and torch's Module lacks; measured by giving them other values."""


class Cells(Pass):
    """Classes that descend from `torch.nn.Module`, and the places that call their `forward` by name."""

    enters = (cst.ClassDef,)

    rule = "C202"

    def __init__(self, context: FileContext) -> None:
        super().__init__(context)
        self._classes: dict[cst.CSTNode, str] = {info.node: info.name for info in context.symbols.classes.values()}
        self._methods: set[cst.CSTNode] = set()
        """`forward` methods of modules."""

    def enter(self, node: cst.CSTNode) -> None:
        if not isinstance(node, cst.ClassDef) or node not in self._classes:
            return
        name = self._classes[node]
        lineage = self.context.symbols.lineage(name)
        info = self.context.symbols.classes[name]
        if self.context.symbols.is_module(name):
            self._collisions(node, name)
            if "forward" in info.methods:
                self._methods.add(info.methods["forward"].node)
        elif FUNCTION in lineage:
            return  # MindSpore's has static `forward` and `backward` too
        elif "forward" in info.methods and any(base == "" for base in info.bases):
            self.context.report("M202", node, f"{node.name.value} has forward() and a base that cannot be resolved")

    def _collisions(self, node: cst.ClassDef, name: str) -> None:
        set_here = {attribute for owner, attribute in self.context.analysis.facts.attributes if owner == name}
        for member in sorted((set_here | set(self.context.symbols.classes[name].methods)) & _CELL_MEMBERS):
            self.context.report("M203", node, f"{node.name.value}.{member} is the name of something of a Cell")

    def function(self, original: cst.FunctionDef, updated: cst.FunctionDef) -> cst.FunctionDef | None:
        if original in self._methods:
            return updated.with_changes(name=updated.name.with_changes(value="construct"))
        return None

    def class_(self, original: cst.ClassDef, updated: cst.ClassDef) -> cst.ClassDef | None:
        name = self._classes.get(original)
        if name is None or not self.context.symbols.is_module(name) or not isinstance(updated.body, cst.IndentedBlock):
            return None
        body = [
            _init_first(s) if isinstance(s, cst.FunctionDef) and s.name.value == "__init__" else s
            for s in updated.body.body
        ]
        if all(new is old for new, old in zip(body, updated.body.body, strict=True)):
            return None
        self.context.lines.add(original, "C203")
        return updated.with_changes(body=updated.body.with_changes(body=body))

    def call(self, original: cst.Call, updated: cst.Call) -> cst.BaseExpression | None:
        """`self.forward(x)`, `super().forward(x)`."""
        if not m.matches(original.func, m.Attribute(attr=m.Name("forward"))):
            return None
        assert isinstance(original.func, cst.Attribute) and isinstance(updated.func, cst.Attribute)
        base = self.context.type_of(original.func.value)
        name = base.name if base.kind in ("object", "super", "class") else self.context.torch_name(original.func.value)
        if not name or not self.context.symbols.is_module(name):
            return None
        return updated.with_changes(func=updated.func.with_changes(attr=cst.Name("construct")))


_SUPER_INIT = m.SimpleStatementLine(
    body=[
        m.Expr(
            m.Call(
                func=m.Attribute(value=m.Call(func=m.Name("super")), attr=m.Name("__init__")),
                args=[],
            )
        )
    ]
)


def _init_first(function: cst.FunctionDef) -> cst.FunctionDef:
    """A Cell takes no attribute before its own `__init__` ran; torch allows plain ones."""
    body = list(function.body.body)
    position = next((i for i, statement in enumerate(body) if m.matches(statement, _SUPER_INIT)), None)
    if position is None:
        return function
    first = 1 if body and m.matches(body[0], m.SimpleStatementLine(body=[m.Expr(m.SimpleString())])) else 0
    if not any(_assigns_self(statement) for statement in body[first:position]):
        return function
    body.insert(first, body.pop(position))
    return function.with_changes(body=function.body.with_changes(body=body))


def _assigns_self(statement: cst.CSTNode) -> bool:
    return bool(m.findall(statement, m.AssignTarget(target=m.Attribute(value=m.Name("self")))))
