"""`x: "torch.Tensor"` -> `x: ms.Tensor`: converted, it needs no quotes unless it names what comes later in the file."""

from __future__ import annotations

import libcst as cst

from migrate.code.inference.annotations import unquoted
from migrate.code.passes.base import Pass
from migrate.code.passes.names import as_value
from migrate.code.rows.template import Expansion
from migrate.code.trees.dotted import dotted
from migrate.code.trees.walk import walk


class QuotedAnnotations(Pass):
    """Annotations in quotes that name torch."""

    rule = None
    enters = ()

    def annotation(self, original: cst.Annotation, updated: cst.Annotation) -> cst.Annotation | None:
        text = original.annotation
        expression = unquoted(text) if isinstance(text, cst.SimpleString | cst.ConcatenatedString) else None
        if expression is None or not all(self._is_early(name) for name in _names(expression)):
            return None
        renamed = _Renaming(self)
        result = expression.visit(renamed)
        if not renamed.done or renamed.left:
            return None
        assert isinstance(result, cst.BaseExpression)
        for name in renamed.done:
            self.context.counts.add(name, converted=True)
        return updated.with_changes(annotation=result)

    def _is_early(self, name: str) -> bool:
        """Whether a name is bound when the annotation would be evaluated: imported or a builtin."""
        return name.split(".")[0] in self.context.resolver.imports or (
            (self.context.resolver.top_level(name) or "").startswith("builtins.")
        )

    def converted(self, name: str) -> cst.BaseExpression | None:
        """The MindSpore name of a dotted torch name as the file spells it."""
        full = self.context.resolver.top_level(name) or ""
        rows = self.context.table.rows(full) if full.startswith("torch.") else ()
        found = as_value(rows, self.context.target) if rows else None
        return found.node if isinstance(found, Expansion) else None

    def is_torch(self, name: str) -> bool:
        return (self.context.resolver.top_level(name) or "").split(".")[0] == "torch"


class _Renaming(cst.CSTTransformer):
    def __init__(self, owner: QuotedAnnotations) -> None:
        super().__init__()
        self.owner = owner
        self.done: list[str] = []
        self.left: list[str] = []

    def visit_Attribute(self, node: cst.Attribute) -> bool:
        return dotted(node) is None

    def leave_Attribute(self, original_node: cst.Attribute, updated_node: cst.Attribute) -> cst.BaseExpression:
        return self._named(dotted(original_node), updated_node)

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.BaseExpression:
        return self._named(original_node.value, updated_node)

    def _named(self, name: str | None, node: cst.Name | cst.Attribute) -> cst.BaseExpression:
        if name is None or not self.owner.is_torch(name):
            return node
        new = self.owner.converted(name)
        if new is None:
            self.left.append(name)
            return node
        self.done.append(self.owner.context.resolver.top_level(name) or name)
        return new


def _names(expression: cst.BaseExpression) -> list[str]:
    chains = {id(n.value): n for n in walk(expression) if isinstance(n, cst.Attribute)}
    nodes = [n for n in walk(expression) if isinstance(n, cst.Name | cst.Attribute) and id(n) not in chains]
    attributes = {id(n.attr) for n in walk(expression) if isinstance(n, cst.Attribute)}
    return [name for n in nodes if id(n) not in attributes and (name := dotted(n))]


__all__ = ["QuotedAnnotations"]
