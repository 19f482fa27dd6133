"""Full slices at the end of an index: `x[mask, :]` -> `x[mask]`, since MindSpore misreads a mask before one."""

from __future__ import annotations

import libcst as cst

from migrate.code.passes.base import Pass


class FullSlices(Pass):
    """Where something is indexed with a tensor; at the end of an index `:` says nothing."""

    rule = "C212"

    def subscript(self, original: cst.Subscript, updated: cst.Subscript) -> cst.BaseExpression | None:
        elements = list(updated.slice)
        while len(elements) > 1 and _is_full(elements[-1]):
            elements.pop()
        kept = len(elements)
        base = self.context.type_of(original.value)
        if kept == len(updated.slice) or (base.is_known and not base.is_tensor):
            return None  # of unknown things only tensors and arrays take a tensor and a slice together
        if any(_is_ellipsis(element) for element in original.slice):
            return None  # `x[..., mask, :]`: without the colon the ellipsis would stand for one axis more
        if not any(self._is_tensor(element) for element in original.slice[:kept]):
            return None
        elements[-1] = elements[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
        return updated.with_changes(slice=elements)

    def _is_tensor(self, element: cst.SubscriptElement) -> bool:
        return isinstance(element.slice, cst.Index) and self.context.type_of(element.slice.value).is_tensor


def _is_full(element: cst.SubscriptElement) -> bool:
    part = element.slice
    return isinstance(part, cst.Slice) and part.lower is part.upper is part.step is None


def _is_ellipsis(element: cst.SubscriptElement) -> bool:
    return isinstance(element.slice, cst.Index) and isinstance(element.slice.value, cst.Ellipsis)
