"""Decorators that become nothing: `@torch.compile(dynamic=True)` above a function, which is the function itself."""

from __future__ import annotations

import re

import libcst as cst

from migrate.code.context import FileContext
from migrate.code.passes.base import Pass
from migrate.code.trees.walk import walk

_PARTIAL = "functools.partial"


class Decorators(Pass):
    """Those whose row gives back what they are given, with or without options."""

    rule = "C215"
    enters = (cst.Decorator,)

    def __init__(self, context: FileContext) -> None:
        super().__init__(context)
        self._gone: set[cst.CSTNode] = set()
        """Decorators, and the calls that they consist of."""

    def enter(self, node: cst.CSTNode) -> None:
        assert isinstance(node, cst.Decorator)
        if self._name(node.decorator) is not None:
            parts = list(walk(node.decorator))
            self._gone.update([node, *parts])
            self.context.owned.update(parts)

    def _name(self, node: cst.BaseExpression) -> str | None:
        """The torch name of a decorator that does nothing in MindSpore."""
        if isinstance(node, cst.Call):
            if self.context.resolver.qualified(node.func) == _PARTIAL and node.args:
                return self._name(node.args[0].value)
            if any(arg.keyword is None for arg in node.args):
                return None
            node = node.func
        name = self.context.torch_name(node)
        rows = self.context.table.rows(name) if name else ()
        for row in rows:
            first = next(iter(row.signature.parameters), None) if row.signature is not None else None
            if first is not None and re.fullmatch(rf"\${re.escape(first)}", row.template(self.context.target) or ""):
                return name
        return None

    def call(self, original: cst.Call, updated: cst.Call) -> cst.BaseExpression | None:
        return updated if original in self._gone else None

    def function(self, original: cst.FunctionDef, updated: cst.FunctionDef) -> cst.FunctionDef | None:
        kept, comments = self._kept(original, updated)
        if kept is None:
            return None
        return updated.with_changes(decorators=kept, leading_lines=[*updated.leading_lines, *comments])

    def class_(self, original: cst.ClassDef, updated: cst.ClassDef) -> cst.ClassDef | None:
        kept, comments = self._kept(original, updated)
        if kept is None:
            return None
        return updated.with_changes(decorators=kept, leading_lines=[*updated.leading_lines, *comments])

    def _kept(
        self, original: cst.FunctionDef | cst.ClassDef, updated: cst.FunctionDef | cst.ClassDef
    ) -> tuple[list[cst.Decorator] | None, list[cst.EmptyLine]]:
        """The decorators that stay, None if all do, and the comments of the others."""
        kept: list[cst.Decorator] = []
        comments: list[cst.EmptyLine] = []
        for before, after in zip(original.decorators, updated.decorators, strict=True):
            if before not in self._gone:
                kept.append(after)
                continue
            self.context.counts.add(self._name(before.decorator) or "", converted=True)
            comments += [line for line in after.leading_lines if line.comment is not None]
            if after.trailing_whitespace.comment is not None:
                comments.append(cst.EmptyLine(comment=after.trailing_whitespace.comment))
        return (kept if len(kept) < len(original.decorators) else None), comments
