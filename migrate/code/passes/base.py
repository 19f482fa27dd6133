"""What a pass may do: look at an original node and give its replacement, or decline."""

from __future__ import annotations

from typing import ClassVar

import libcst as cst

from migrate.code.context import FileContext


class Pass:
    """A rule that is asked about every node of its kinds, children first. None means: not mine.

    `original` is the node of the analysed tree (ask `context` about it), `updated` the same with rewritten children.
    """

    rule: str | None = "C201"
    """What a changed node of this pass is called in `migrate.code.rules`; None: the rows that it applies say it."""

    enters: ClassVar[tuple[type[cst.CSTNode], ...]] = (cst.CSTNode,)
    """Kinds of nodes for which `enter` is called."""

    def __init__(self, context: FileContext) -> None:
        self.context = context

    def enter(self, node: cst.CSTNode) -> None:
        """Seen before the children are rewritten; the place to claim name nodes (`context.owned`)."""

    def call(self, original: cst.Call, updated: cst.Call) -> cst.BaseExpression | None:
        return None

    def reference(self, original: cst.Name | cst.Attribute, updated: cst.BaseExpression) -> cst.BaseExpression | None:
        """A name or attribute that is not the function of a call."""
        return None

    def operation(self, original: cst.BinaryOperation, updated: cst.BinaryOperation) -> cst.BaseExpression | None:
        return None

    def subscript(self, original: cst.Subscript, updated: cst.Subscript) -> cst.BaseExpression | None:
        return None

    def formatted(
        self, original: cst.FormattedStringExpression, updated: cst.FormattedStringExpression
    ) -> cst.FormattedStringExpression | None:
        return None

    def annotation(self, original: cst.Annotation, updated: cst.Annotation) -> cst.Annotation | None:
        return None

    def small_statement(
        self, original: cst.BaseSmallStatement, updated: cst.BaseSmallStatement
    ) -> cst.BaseSmallStatement | None:
        return None

    def function(self, original: cst.FunctionDef, updated: cst.FunctionDef) -> cst.FunctionDef | None:
        return None

    def class_(self, original: cst.ClassDef, updated: cst.ClassDef) -> cst.ClassDef | None:
        return None

    def block(
        self, original: cst.IndentedBlock | cst.Module, updated: cst.IndentedBlock | cst.Module
    ) -> cst.IndentedBlock | cst.Module | None:
        """A sequence of statements. Only this hook may change their number, so originals and updates correspond."""
        return None
