"""One traversal over a file: every pass is asked about every node, findings become TODO lines above statements."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import libcst as cst

from migrate.code.context import FileContext
from migrate.code.passes.base import Pass
from migrate.code.trees.walk import child_fields


def rewrite(context: FileContext, passes: list[Pass]) -> cst.Module:
    """The file after all passes; names of MindSpore are spelled in full (`names.imports` shortens them)."""
    tree = _Rewriter(context, passes).node(context.file.tree)
    assert isinstance(tree, cst.Module)
    return tree


_Statement = (cst.SimpleStatementLine, cst.BaseCompoundStatement)
_ANSWERED: dict[str, tuple[type, ...]] = {
    "call": (cst.Call,),
    "reference": (cst.Name, cst.Attribute),
    "operation": (cst.BinaryOperation,),
    "subscript": (cst.Subscript,),
    "formatted": (cst.FormattedStringExpression,),
    "annotation": (cst.Annotation,),
    "small_statement": (cst.BaseSmallStatement,),
    "function": (cst.FunctionDef,),
    "class_": (cst.ClassDef,),
    "block": (cst.IndentedBlock, cst.Module),
}
"""Which hook of the passes answers for which nodes."""
_SEQUENCES = ("class_", "block")
"""Hooks whose nodes are many lines; a pass says itself which of them it changed."""


@dataclass(frozen=True)
class _Kind:
    """What is done with a node of some class."""

    is_statement: bool
    hook: str | None
    fields: tuple[str, ...]


@functools.cache
def _kind(node: type) -> _Kind:
    """By class, because `isinstance` on libcst's abstract classes is slow and would be asked millions of times."""
    hook = next((hook for hook, kinds in _ANSWERED.items() if issubclass(node, kinds)), None)
    # Import statements are settled when everything else is known (`migrate.code.names.imports`).
    is_import = issubclass(node, cst.Import | cst.ImportFrom)
    return _Kind(issubclass(node, _Statement), hook, () if is_import else child_fields(node))


class _Rewriter:
    """Not a libcst transformer: those rebuild every node, this keeps every node below which nothing changed."""

    def __init__(self, context: FileContext, passes: list[Pass]) -> None:
        self.context = context
        # A pass is only asked where it has something to say.
        self._hooks: dict[str, list[Callable[..., Any]]] = {
            hook: [getattr(rule, hook) for rule in passes if getattr(type(rule), hook) is not getattr(Pass, hook)]
            for hook in _ANSWERED
        }
        self._passes = [rule for rule in passes if type(rule).enter is not Pass.enter]
        self._enter: dict[type, list[Callable[[cst.CSTNode], None]]] = {}

    def node(self, original: cst.CSTNode) -> cst.CSTNode:
        """What a node becomes, its children first."""
        kind = _kind(type(original))
        if kind.is_statement:
            self.context.enter_statement(original)
        for enter in self._entering(type(original)):
            enter(original)
        updated = self._with_children(original, kind.fields)
        if kind.hook is not None:
            updated = self._answer(kind.hook, original, updated)
        return self.context.leave_statement(updated) if kind.is_statement else updated

    def _entering(self, kind: type) -> list[Callable[[cst.CSTNode], None]]:
        found = self._enter.get(kind)
        if found is None:
            found = [rule.enter for rule in self._passes if issubclass(kind, rule.enters)]
            self._enter[kind] = found
        return found

    def _with_children(self, node: cst.CSTNode, fields: tuple[str, ...]) -> cst.CSTNode:
        changes: dict[str, object] = {}
        for name in fields:
            value = getattr(node, name)
            if isinstance(value, cst.CSTNode):
                changed = self.node(value)
                if changed is not value:
                    changes[name] = changed
            elif type(value) in (list, tuple):
                items = [self.node(item) for item in value]
                if any(new is not old for new, old in zip(items, value, strict=True)):
                    changes[name] = items
        return node.with_changes(**changes) if changes else node

    def _answer(self, hook: str, original: cst.CSTNode, updated: cst.CSTNode) -> cst.CSTNode:
        if hook == "reference" and original in self.context.owned:
            return updated
        return (self._first if hook in ("call", "reference") else self._chain)(hook, original, updated)

    def _first(self, hook: str, original: cst.CSTNode, updated: cst.CSTNode) -> cst.CSTNode:
        """The answer of the first pass that has one."""
        for ask in self._hooks[hook]:
            result: cst.CSTNode | None = ask(original, updated)
            if result is not None:
                self.context.answered(original, ask.__self__.rule, result is not updated)  # type: ignore[attr-defined]
                return result
        return updated

    def _chain(self, hook: str, original: cst.CSTNode, updated: cst.CSTNode) -> cst.CSTNode:
        """Every pass changes what the one before it gave."""
        for ask in self._hooks[hook]:
            result: cst.CSTNode | None = ask(original, updated)
            if result is not None and hook not in _SEQUENCES:
                self.context.answered(original, ask.__self__.rule, result is not updated)  # type: ignore[attr-defined]
            updated = updated if result is None else result
        return updated
