"""One traversal over a file: every pass is asked about every node, findings become TODO lines above statements."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import libcst as cst

from migrate.code.context import FileContext
from migrate.code.passes.base import Pass


def rewrite(context: FileContext, passes: list[Pass]) -> cst.Module:
    """The file after all passes; names of MindSpore are spelled in full (`migrate.code.imports` shortens them)."""
    tree = context.file.tree.visit(_Rewriter(context, passes))
    assert isinstance(tree, cst.Module)
    return tree


_LAYOUT = (cst.BaseParenthesizableWhitespace, cst.EmptyLine, cst.TrailingWhitespace, cst.Comma, cst.Semicolon)
"""Nodes in which nothing can be converted; not entering them saves a third of the time."""
_Statement = (cst.SimpleStatementLine, cst.BaseCompoundStatement)
_ANSWERED: dict[str, tuple[type, ...]] = {
    "call": (cst.Call,),
    "reference": (cst.Name, cst.Attribute),
    "operation": (cst.BinaryOperation,),
    "formatted": (cst.FormattedStringExpression,),
    "small_statement": (cst.BaseSmallStatement,),
    "function": (cst.FunctionDef,),
    "class_": (cst.ClassDef,),
    "block": (cst.IndentedBlock, cst.Module),
}
"""Which hook of the passes answers for which nodes."""


@dataclass(frozen=True)
class _Kind:
    """What is done with a node of some class."""

    is_layout: bool
    is_statement: bool
    hook: str | None


@functools.cache
def _kind(node: type) -> _Kind:
    """By class, because `isinstance` on libcst's abstract classes is slow and would be asked millions of times."""
    hook = next((hook for hook, kinds in _ANSWERED.items() if issubclass(node, kinds)), None)
    return _Kind(issubclass(node, _LAYOUT), issubclass(node, _Statement), hook)


class _Rewriter(cst.CSTTransformer):
    def __init__(self, context: FileContext, passes: list[Pass]) -> None:
        super().__init__()
        self.context = context
        # A pass is only asked where it has something to say.
        self._hooks: dict[str, list[Callable[..., Any]]] = {
            hook: [getattr(rule, hook) for rule in passes if getattr(type(rule), hook) is not getattr(Pass, hook)]
            for hook in ("enter", *_ANSWERED)
        }

    def on_visit(self, node: cst.CSTNode) -> bool:
        kind = _kind(type(node))
        if kind.is_layout:
            return False
        if kind.is_statement:
            self.context.enter_statement(node)
        for enter in self._hooks["enter"]:
            enter(node)
        # Import statements are settled when everything else is known (`migrate.code.imports`).
        return not isinstance(node, cst.Import | cst.ImportFrom)

    def on_leave(self, original_node: cst.CSTNode, updated_node):  # type: ignore[no-untyped-def]
        kind = _kind(type(original_node))
        if kind.hook in ("call", "reference"):
            if kind.hook == "reference" and original_node in self.context.owned:
                return updated_node
            return self._first(kind.hook, original_node, updated_node)
        result = self._chain(kind.hook, original_node, updated_node) if kind.hook else updated_node
        return self.context.leave_statement(result) if kind.is_statement else result

    def _first(self, hook: str, original: cst.CSTNode, updated: cst.CSTNode) -> cst.CSTNode:
        """The answer of the first pass that has one."""
        for ask in self._hooks[hook]:
            result: cst.CSTNode | None = ask(original, updated)
            if result is not None:
                return result
        return updated

    def _chain(self, hook: str, original: cst.CSTNode, updated: cst.CSTNode) -> cst.CSTNode:
        """Every pass changes what the one before it gave."""
        for ask in self._hooks[hook]:
            result: cst.CSTNode | None = ask(original, updated)
            updated = updated if result is None else result
        return updated
