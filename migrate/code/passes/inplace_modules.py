"""`nn.ReLU(inplace=True)`: MindSpore's modules never work in place, which shows where the input is used again.

The argument is dropped where the module's input is visibly a fresh tensor that nobody looks at afterwards: behind a
linear or convolutional layer of an `nn.Sequential`, in `self.act(self.norm(x))`, in `x = self.norm(y)` with
`x = self.act(x)` below it. Anywhere else dropping it is an unsafe rule.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

import libcst as cst

from migrate.code.context import FileContext, code_of
from migrate.code.passes.base import Pass
from migrate.code.rows.binding import Refusal, bind
from migrate.code.trees.walk import walk

_FRESH_MODULES = frozenset(
    f"torch.nn.{name}"
    for name in (
        *(f"{kind}{axes}d" for kind in ("Conv", "ConvTranspose", "BatchNorm", "InstanceNorm") for axes in (1, 2, 3)),
        *("Linear", "Bilinear", "Embedding", "LayerNorm", "GroupNorm", "RMSNorm"),
    )
)
"""Modules whose output is a tensor of its own and none that they still need."""
_FRESH_FUNCTIONS = frozenset(
    {"torch.matmul", "torch.bmm", "torch.cat", "torch.stack", "torch.nn.functional.linear"}
    | {f"torch.nn.functional.conv{axes}d" for axes in (1, 2, 3)}
)
SEQUENTIAL = "torch.nn.Sequential"


class InplaceModules(Pass):
    """Decides about the argument `inplace`; the rows of the table drop it."""

    rule = None

    def __init__(self, context: FileContext) -> None:
        super().__init__(context)
        self._harmless: set[cst.CSTNode] = set()
        """Calls whose module gets fresh tensors only."""

    def enter(self, node: cst.CSTNode) -> None:
        if isinstance(node, cst.Call) and self.context.torch_name(node.func) == SEQUENTIAL:
            self._sequence([arg.value for arg in node.args if not arg.star])
            for arg in node.args:
                if arg.star == "*" and isinstance(arg.value, cst.List):
                    self._sequence([element.value for element in arg.value.elements])
        elif isinstance(node, cst.ClassDef):
            self._members(node)

    def call(self, original: cst.Call, updated: cst.Call) -> cst.BaseExpression | None:
        name = self._inplace_module(original)
        if name is None or original in self._harmless:
            return None
        if self.context.unsafe:
            self.context.lines.add(original, "C214", name)
            return None
        self.context.counts.add(name, converted=False)
        self.context.report("M306", original, f"{code_of(original)}: its input may be used again")
        return updated

    def _inplace_module(self, node: cst.Call) -> str | None:
        """Name of the module that a call makes, if it is told to work in place and the row would drop that."""
        name = self.context.torch_name(node.func)
        rows = self.context.table.rows(name) if name is not None and name.startswith("torch.nn.") else ()
        if not rows or rows[0].drop.get("inplace") != "any":
            return None
        bound = bind(rows[0], node.args)
        given = None if isinstance(bound, Refusal) else bound.values.get("inplace")
        return None if given is None or code_of(given.value) == "False" else name

    def _sequence(self, items: Sequence[cst.BaseExpression]) -> None:
        for before, item in pairwise(items):
            is_fresh = isinstance(before, cst.Call) and self.context.torch_name(before.func) in _FRESH_MODULES
            if is_fresh or before in self._harmless:  # what works in place on a fresh tensor hands it on
                self._harmless.add(item)

    # -- attributes of a class
    def _members(self, node: cst.ClassDef) -> None:
        """`self.act = nn.ReLU(inplace=True)` whose every call gets a fresh tensor."""
        made: dict[str, list[cst.Call]] = {}
        for inner in walk(node):
            if isinstance(inner, cst.Assign) and isinstance(inner.value, cst.Call):
                name = _self_member(inner.targets[0].target)
                if name is not None and self._inplace_module(inner.value):
                    made.setdefault(name, []).append(inner.value)
        if not made:
            return
        fine = self._fresh_calls(node)
        for name, calls in made.items():
            uses = [inner for inner in walk(node) if isinstance(inner, cst.Attribute) and _self_member(inner) == name]
            told = [use for use in uses if use not in fine]
            if len(told) == len(calls) and not self._used_elsewhere(name):
                self._harmless.update(calls)

    def _used_elsewhere(self, name: str) -> bool:
        """Whether anything but methods on their own object reaches for a member of this name."""
        sources = self.context.analysis.project.sources
        return any(re.search(rf"(?<!\bself)\.{name}\b", source.text or "") for source in sources)

    def _fresh_calls(self, node: cst.ClassDef) -> set[cst.CSTNode]:
        """`self.act` in `self.act(x)` where `x` is fresh."""
        found: set[cst.CSTNode] = set()
        for inner in walk(node):
            if isinstance(inner, cst.Call) and len(inner.args) == 1 and self._is_fresh(inner.args[0].value):
                found.add(inner.func)
            elif isinstance(inner, cst.IndentedBlock):
                found.update(self._renewed(inner))
        return found

    def _renewed(self, block: cst.IndentedBlock) -> list[cst.CSTNode]:
        """`self.act` in `x = self.act(x)` right behind a line that gave `x` a fresh tensor."""
        found: list[cst.CSTNode] = []
        fresh: str | None = None
        for statement in block.body:
            name, value = _assignment(statement)
            if name is None or value is None:
                if fresh is not None and _mentions(statement, fresh):
                    fresh = None
                continue
            if isinstance(value, cst.Call) and len(value.args) == 1 and code_of(value.args[0].value) == name == fresh:
                found.append(value.func)  # the result is the same tensor in torch, so it stays fresh
            elif self._is_fresh(value):
                fresh = name
            elif fresh is not None and _mentions(statement, fresh):
                fresh = None
        return found

    def _is_fresh(self, node: cst.BaseExpression) -> bool:
        if isinstance(node, cst.BinaryOperation):
            return True
        if not isinstance(node, cst.Call):
            return False
        if self.context.torch_name(node.func) in _FRESH_FUNCTIONS:
            return True
        kind = self.context.type_of(node.func)
        return kind.kind == "object" and bool(kind.name) and set(kind.name.split("|")) <= _FRESH_MODULES


def _self_member(node: cst.CSTNode) -> str | None:
    """`act` of `self.act`."""
    if isinstance(node, cst.Attribute) and isinstance(node.value, cst.Name) and node.value.value == "self":
        return node.attr.value
    return None


def _assignment(statement: cst.CSTNode) -> tuple[str | None, cst.BaseExpression | None]:
    """Name and value of a line `x = ...`."""
    small = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) and len(statement.body) == 1 else None
    if isinstance(small, cst.Assign) and len(small.targets) == 1 and isinstance(small.targets[0].target, cst.Name):
        return small.targets[0].target.value, small.value
    return None, None


def _mentions(node: cst.CSTNode, name: str) -> bool:
    return any(isinstance(inner, cst.Name) and inner.value == name for inner in walk(node))
