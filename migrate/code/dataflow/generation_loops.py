"""Steps of generation: a model's call in a loop whose result, as a chosen token, goes into the next such call."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst

from migrate.code.context import FileContext
from migrate.code.dataflow import dataflow
from migrate.code.dataflow.called import called_functions
from migrate.code.names.symbols import MODULE, FunctionInfo
from migrate.code.trees.dotted import dotted
from migrate.code.trees.walk import children, walk

Loop = cst.For | cst.While
_CHOICES = frozenset(
    {"argmax", "multinomial", "topk", "sort", "max", "sample", "gumbel_softmax", "cat", "concat", "concatenate"}
)
"""What makes the next token of logits, and puts it behind the others."""
_NESTED = (cst.FunctionDef, cst.Lambda, cst.ClassDef)
_HOLDERS = (
    cst.BaseStatement,
    cst.BaseSuite,
    cst.Else,
    cst.Finally,
    cst.ExceptHandler,
    cst.ExceptStarHandler,
    cst.MatchCase,
)
_DEPTH = 3
"""Calls that are followed from the loop to the choice."""


@dataclass(frozen=True)
class GenerationStep:
    """A call of a model."""

    call: cst.Call
    loop: Loop
    """The loop that it is a step of: around the call, or around the call of the function that has it."""
    is_direct: bool
    """Whether the loop is around the call itself."""


def generation_steps(context: FileContext) -> list[GenerationStep]:
    """The steps in a file, in the order of the text."""
    return list(_Finder(context).steps.values())


class _Finder:
    def __init__(self, context: FileContext) -> None:
        self.context = context
        self.steps: dict[cst.Call, GenerationStep] = {}
        symbols = context.symbols
        self._forwards = {
            info.methods["forward"].node
            for info in symbols.classes.values()
            if "forward" in info.methods and symbols.is_module(info.name)
        }
        self._scope(context.file.tree)

    def _scope(self, scope: cst.FunctionDef | cst.Module) -> None:
        """Looks at the loops of a function, then at the functions and classes inside of it."""
        pending: list[cst.CSTNode] = [scope.body] if isinstance(scope, cst.FunctionDef) else list(reversed(scope.body))
        loops: list[Loop] = []
        while pending:
            node = pending.pop()
            kind = type(node)
            if kind is cst.FunctionDef:
                self._scope(cst.ensure_type(node, cst.FunctionDef))
            elif kind is not cst.SimpleStatementLine:  # which holds no statements
                if isinstance(node, cst.For | cst.While):
                    loops.append(node)
                pending += [n for n in reversed(children(node)) if isinstance(n, _HOLDERS)]
        if loops and not self._is_differentiated(scope):
            for loop in loops:
                self._loop(loop)

    def _is_differentiated(self, scope: cst.FunctionDef | cst.Module) -> bool:
        """Part of a model, whose loop goes over its layers or over time, or a training loop."""
        return scope in self._forwards or any(
            isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and node.func.attr.value == "backward"
            for node in walk(scope, skip=_NESTED)
        )

    def _loop(self, loop: Loop) -> None:
        calls = [node for node in walk(loop.body, skip=_NESTED) if isinstance(node, cst.Call)]
        found = [(call, [call] if self._is_model(call) else self._inside(call)) for call in calls]
        if not any(models for _, models in found):
            return
        flows = list(_flows(loop.body))
        heads = [node for node in walk(loop, skip=_NESTED) if isinstance(node, cst.For)]
        targets = set().union(*(dataflow.writes(cst.AssignTarget(head.target)) for head in heads), set())
        for call, models in found:
            if not models or dataflow.reads(call.func) & targets:
                continue  # every turn of the loop has another module
            behind = self._behind(call, flows)
            written = set().union(*(flow.written for flow in behind), set())
            given = set().union(*(dataflow.reads(arg.value) for arg in call.args), set())
            if not given & written or not any(self._chooses(flow.node, _DEPTH) for flow in behind):
                continue
            if self._is_guess(call) and self._follows_another(call, found, flows):
                continue  # what filters the logits of a model
            for model in models:
                self.steps.setdefault(model, GenerationStep(model, loop, model is call))

    @staticmethod
    def _behind(call: cst.Call, flows: list[_Flow]) -> list[_Flow]:
        """The statement of a call, and those that its result reaches, in this turn of the loop or a later one."""
        reached = [flow for flow in flows if any(node is call for node in walk(flow.node))]
        size = -1
        while size != len(reached):
            size = len(reached)
            names = set().union(*(flow.written for flow in reached), set())
            reached += [flow for flow in flows if flow not in reached and flow.read & names]
        return reached

    def _follows_another(
        self, call: cst.Call, found: list[tuple[cst.Call, list[cst.Call]]], flows: list[_Flow]
    ) -> bool:
        """Whether a call is given what another model's call gave, before a token is chosen from it."""
        given = set().union(*(dataflow.reads(arg.value) for arg in call.args), set())
        for other, models in found:
            if models and other is not call:
                before_choice = self._behind(other, [flow for flow in flows if not self._chooses(flow.node, 0)])
                if given & set().union(*(flow.written for flow in before_choice), set()):
                    return True
        return False

    def _is_guess(self, call: cst.Call) -> bool:
        return isinstance(call.func, cst.Name) and not self.context.type_of(call.func).is_known

    def _is_model(self, call: cst.Call) -> bool:
        """Whether a module of the repository is called, or by a plain name something that may be one."""
        function, symbols = call.func, self.context.symbols
        if dotted(function) is None:
            return False
        kind = self.context.type_of(function)
        if kind.kind == "object":
            names = [one.name for one in kind.alternatives]
            ours = any(name in symbols.classes or name == MODULE for name in names)
            return ours and all(symbols.is_module(name) for name in names)
        if kind.kind == "method":
            info = symbols.functions.get(kind.name)
            is_method = info is not None and info.owner is not None and symbols.is_module(info.owner.name)
            return is_method and self._runs_parts(info)
        is_plain = isinstance(function, cst.Name) or (dotted(function) or "").startswith("self.")
        return (
            is_plain
            and not kind.is_known
            and self.context.uses_torch
            and self.context.resolver.qualified(function) is None
        )

    def _runs_parts(self, info: FunctionInfo | None) -> bool:
        """Whether a method calls modules of its object, and not the object as a whole."""
        names = {name for call in _calls_of(info) if (name := dotted(call.func))}
        return "self" not in names and any(name.startswith("self.") for name in names)

    def _inside(self, call: cst.Call) -> list[cst.Call]:
        """The models that a function of this file calls, outside of loops of its own."""
        kind = self.context.type_of(call.func)
        info = self.context.symbols.functions.get(kind.name) if kind.kind in ("function", "method") else None
        if info is None or info.resolver is not self.context.resolver:
            return []
        return [node for node in _calls_of(info) if self._is_model(node)]

    def _chooses(self, node: cst.CSTNode, depth: int) -> bool:
        """Whether a token is chosen or put behind others, here or in functions that are called."""
        for call in walk(node):
            if not isinstance(call, cst.Call) or self._is_model(call):
                continue
            name = call.func.attr.value if isinstance(call.func, cst.Attribute) else dotted(call.func) or ""
            qualified = self.context.resolver.qualified(call.func) or ""
            if name in _CHOICES and not qualified.startswith("builtins."):
                return True
            if depth and any(self._chooses(info.node.body, depth - 1) for info in called_functions(self.context, call)):
                return True
        return False


def _calls_of(info: FunctionInfo | None) -> list[cst.Call]:
    if info is None:
        return []
    skip = (*_NESTED, cst.For, cst.While)
    return [node for node in walk(info.node.body, skip=skip) if isinstance(node, cst.Call)]


@dataclass(frozen=True)
class _Flow:
    """What a statement reads and writes."""

    node: cst.CSTNode
    read: set[str]
    written: set[str]


def _flows(block: cst.CSTNode) -> Iterator[_Flow]:
    """The simple statements below a block, and the heads of the loops."""
    for node in children(block):
        if isinstance(node, cst.BaseSmallStatement):
            yield _Flow(node, dataflow.reads(node), dataflow.writes(node))
        elif isinstance(node, cst.For):
            yield _Flow(node.iter, dataflow.reads(node.iter), dataflow.writes(cst.AssignTarget(node.target)))
            yield from _flows(node)
        elif not isinstance(node, (*_NESTED, cst.BaseExpression)):
            yield from _flows(node)


__all__ = ["GenerationStep", "generation_steps"]
