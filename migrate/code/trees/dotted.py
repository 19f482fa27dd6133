"""Chains of names as text."""

from __future__ import annotations

import libcst as cst


def dotted(node: cst.CSTNode | None) -> str | None:
    """`a.b.c` as text, or None for anything but a chain of names."""
    if isinstance(node, cst.Name):
        return node.value
    if isinstance(node, cst.Attribute):
        base = dotted(node.value)
        return None if base is None else f"{base}.{node.attr.value}"
    return None


__all__ = ["dotted"]
