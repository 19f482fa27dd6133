"""`f"{loss:.3f}"`: a MindSpore tensor takes no format specification, the number in it does."""

from __future__ import annotations

import libcst as cst

from migrate.code.passes.base import Pass


class Formats(Pass):
    """Format specifications of tensors in f-strings."""

    rule = "C207"

    def formatted(
        self, original: cst.FormattedStringExpression, updated: cst.FormattedStringExpression
    ) -> cst.FormattedStringExpression | None:
        if original.format_spec is None or original.conversion is not None:
            return None
        if not self.context.type_of(original.expression).is_tensor:
            return None
        value = updated.expression
        if not isinstance(value, cst.Name | cst.Attribute | cst.Call | cst.Subscript) and not value.lpar:
            value = value.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
        return updated.with_changes(expression=cst.Call(func=cst.Attribute(value=value, attr=cst.Name("item"))))
