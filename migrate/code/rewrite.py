"""One traversal over a file: every pass is asked about every node, findings become TODO lines above statements."""

from __future__ import annotations

import libcst as cst

from migrate.code.context import FileContext
from migrate.code.passes.base import Pass


def rewrite(context: FileContext, passes: list[Pass]) -> cst.Module:
    """The file after all passes; names of MindSpore are spelled in full (`migrate.code.imports` shortens them)."""
    tree = context.file.tree.visit(_Rewriter(context, passes))
    assert isinstance(tree, cst.Module)
    return tree


class _Rewriter(cst.CSTTransformer):
    def __init__(self, context: FileContext, passes: list[Pass]) -> None:
        super().__init__()
        self.context, self.passes = context, passes

    def on_visit(self, node: cst.CSTNode) -> bool:
        if isinstance(node, cst.SimpleStatementLine | cst.BaseCompoundStatement):
            self.context.enter_statement(node)
        for rule in self.passes:
            rule.enter(node)
        # Import statements are settled when everything else is known (`migrate.code.imports`).
        return not isinstance(node, cst.Import | cst.ImportFrom)

    def on_leave(self, original_node: cst.CSTNode, updated_node):  # type: ignore[no-untyped-def]
        result = self._rewritten(original_node, updated_node)
        if isinstance(original_node, cst.SimpleStatementLine | cst.BaseCompoundStatement):
            return self.context.leave_statement(result)
        return result

    def _rewritten(self, original: cst.CSTNode, updated):  # type: ignore[no-untyped-def]
        match original:
            case cst.Call():
                return self._first("call", original, updated)
            case cst.Name() | cst.Attribute():
                return updated if original in self.context.owned else self._first("reference", original, updated)
            case cst.FormattedStringExpression():
                return self._chain("formatted", original, updated)
            case cst.BaseSmallStatement():
                return self._chain("small_statement", original, updated)
            case cst.FunctionDef():
                return self._chain("function", original, updated)
            case cst.ClassDef():
                return self._chain("class_", original, updated)
            case cst.IndentedBlock() | cst.Module():
                return self._chain("block", original, updated)
        return updated

    def _first(self, hook: str, original: cst.CSTNode, updated: cst.CSTNode) -> cst.CSTNode:
        """The answer of the first pass that has one."""
        for rule in self.passes:
            result: cst.CSTNode | None = getattr(rule, hook)(original, updated)
            if result is not None:
                return result
        return updated

    def _chain(self, hook: str, original: cst.CSTNode, updated: cst.CSTNode) -> cst.CSTNode:
        """Every pass changes what the one before it gave."""
        for rule in self.passes:
            result: cst.CSTNode | None = getattr(rule, hook)(original, updated)
            updated = updated if result is None else result
        return updated
