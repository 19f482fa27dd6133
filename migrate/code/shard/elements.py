"""Subscripts while the flow of a method is followed."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from migrate.code.context import code_of
from migrate.code.shard.attributes import Attributes
from migrate.code.shard.sizes import Size, named, unknown
from migrate.code.shard.values import (
    ATTENTION_FUNCTIONS,
    ATTENTION_INTERFACE,
    AxesError,
    Items,
    Kept,
    Number,
    Opaque,
    Tensor,
    Torch,
    UnprovedError,
    Value,
    is_cut,
    joined_all,
)


class Elements(Attributes):
    """Elements of tuples and shapes, and tensors by slices and indices."""

    def _subscript(self, node: cst.Subscript) -> Value:
        base = self.value(node.value)
        indices = [element.slice for element in node.slice]
        for index in indices:
            if isinstance(index, cst.Index) and is_cut(self.value(index.value)):
                raise UnprovedError(f"{code_of(node)}: an index that only one rank has")
        if isinstance(base, Kept):
            return base.content
        if isinstance(base, Items) and len(indices) == 1:
            return self.element(base, indices[0], node)
        if isinstance(base, Tensor):
            if base.shape is None:
                return base.with_shape(None)
            return self.indexed(base, indices)
        if isinstance(base, Torch) and base.name.endswith(ATTENTION_FUNCTIONS):
            return ATTENTION_INTERFACE
        if isinstance(base, Torch) and base.name.endswith("ACT2FN"):
            return Torch(base.name, module=True)
        return self.called([base], code_of(node)) if isinstance(base, Torch) else self.mixed([base], code_of(node))

    def element(self, base: Items, index: cst.BaseSlice, node: cst.BaseExpression) -> Value:
        rest = next((i for i, v in enumerate(base.items) if isinstance(v, Number) and v.size.rest), None)
        if isinstance(index, cst.Index):
            position = written_number(index.value)
            if position is None:
                return joined_all(base.items)
            if rest == 0 and position >= 0 and isinstance(base.items[0], Number):
                return Number(named(f"{base.items[0].size.factors[0]}.{position}"))
            if rest is not None and (position >= 0 or position < -(len(base.items) - 1)):
                return Number(unknown())
            return base.items[position] if -len(base.items) <= position < len(base.items) else Opaque()
        assert isinstance(index, cst.Slice)
        lower = 0 if index.lower is None else written_number(index.lower)
        upper = len(base.items) if index.upper is None else written_number(index.upper)
        known = lower is not None and upper is not None and index.step is None
        if known and rest is not None:
            known = lower in (0,) and upper is not None and (upper < 0 or index.upper is None)
        if not known:
            return self.mixed([base], code_of(node))
        return Items(base.items[lower:upper])

    def indexed(self, tensor: Tensor, indices: Sequence[cst.BaseSlice]) -> Tensor:
        """A tensor by slices, numbers, None and an ellipsis; not along the cut axis."""
        assert tensor.shape is not None
        whole = list(self.expanded(tensor.shape))
        ellipsis = [i for i, x in enumerate(indices) if isinstance(x, cst.Index) and isinstance(x.value, cst.Ellipsis)]
        front = list(indices[: ellipsis[0]]) if ellipsis else list(indices)
        back = list(indices[ellipsis[0] + 1 :]) if ellipsis else []
        taken = sum(not _is_new_axis(index) for index in front)
        if whole[0].rest and taken:
            if tensor.is_cut:
                raise AxesError("a cut tensor whose number of axes is not known is indexed from the front")
            return tensor.with_shape(None)
        behind = sum(not _is_new_axis(index) for index in back)
        end = len(whole) - behind
        if taken > end:
            return self._unshaped(tensor)
        shape = [*_axes(whole[:taken], front, self), *whole[taken:end], *_axes(whole[end:], back, self)]
        return tensor.with_shape(tuple(shape))

    def _unshaped(self, tensor: Tensor) -> Tensor:
        if tensor.is_cut:
            raise UnprovedError("a cut tensor is indexed with more indices than it is known to have axes")
        return tensor.with_shape(None)


def written_number(node: cst.BaseExpression) -> int | None:
    if isinstance(node, cst.Integer):
        return node.evaluated_value
    if isinstance(node, cst.UnaryOperation) and isinstance(node.operator, cst.Minus):
        inner = written_number(node.expression)
        return None if inner is None else -inner
    return None


def _is_new_axis(index: cst.BaseSlice) -> bool:
    return isinstance(index, cst.Index) and isinstance(index.value, cst.Name) and index.value.value == "None"


def _axes(sizes: Sequence[Size], indices: Sequence[cst.BaseSlice], flow: Attributes) -> list[Size]:
    found: list[Size] = []
    left = list(sizes)
    for index in indices:
        if _is_new_axis(index):
            found.append(Size())
            continue
        size = left.pop(0)
        if isinstance(index, cst.Slice) and index.lower is None and index.upper is None and index.step is None:
            found.append(size)
        elif size.cut:
            raise UnprovedError("a cut axis is indexed")
        elif isinstance(index, cst.Slice) or isinstance(flow.value(index.value), Tensor | Items):  # type: ignore[attr-defined]
            found.append(unknown())
    return [*found, *left]
