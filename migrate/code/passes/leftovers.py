"""Statements left without effect: `model` after `model.to(device)`, `x = x` after `x = x.to(device)`."""

from __future__ import annotations

import libcst as cst

from migrate.code.context import code_of
from migrate.code.passes.base import Pass

DROPPED = "_msmigrate_dropped_"
"""Stands for a statement to be removed; `migrate.code.names.imports` removes it and keeps its comments."""


class Leftovers(Pass):
    """Marks them; removing them here would break the correspondence of original and rewritten statements."""

    rule = "C210"

    def small_statement(
        self, original: cst.BaseSmallStatement, updated: cst.BaseSmallStatement
    ) -> cst.BaseSmallStatement | None:
        if isinstance(original, cst.Expr) and isinstance(updated, cst.Expr):
            gone = isinstance(original.value, cst.Call) and isinstance(updated.value, cst.Name | cst.Attribute)
        elif isinstance(updated, cst.Assign) and len(updated.targets) == 1:
            same = code_of(updated.targets[0].target) == code_of(updated.value)
            gone = same and isinstance(original, cst.Assign) and code_of(original.value) != code_of(updated.value)
        else:
            gone = False
        return cst.Expr(cst.Name(DROPPED), semicolon=updated.semicolon) if gone else None


def is_dropped(node: cst.CSTNode) -> bool:
    """Whether a small statement is the mark."""
    return isinstance(node, cst.Expr) and isinstance(node.value, cst.Name) and node.value.value == DROPPED
