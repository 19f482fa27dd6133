"""Reshapes of cut tensors: where the cut axis goes, and which lengths in the source are no longer true."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import libcst as cst

from migrate.code.shard.record import Record, Term
from migrate.code.shard.sizes import INFERRED, Size, product
from migrate.code.shard.values import Tensor, UnprovedError


@dataclass(frozen=True)
class Length:
    """An entry of the new shape, and its place in the source if it has one of its own."""

    size: Size
    term: Term | None = None


def reshape(tensor: Tensor, target: Sequence[Length], record: Record) -> Tensor:
    """The reshaped tensor. Only where the lengths prove which axes of the old shape make up the new ones.

    Raises:
        UnprovedError: they do not.
    """
    if not tensor.is_cut:
        record.whole_places |= {length.term.node for length in target if length.term is not None}
        return tensor.with_shape(tuple(length.size for length in target))
    assert tensor.shape is not None
    old, new = list(tensor.shape), list(target)
    before: list[Size] = []
    after: list[Size] = []
    while old and new and (shared := _same(old[0], new[0], old[1:], new[1:])):
        before.append(shared)
        old, new = old[1:], new[1:]
    while old and new and (old[-1] == new[-1].size and not old[-1].cut):
        after.insert(0, old.pop())
        new.pop()
    if not old and not new:
        return tensor.with_shape((*before, *after))
    place = next((i for i, size in enumerate(old) if size.cut), None)
    if place is None:  # the cut axis stays where it is, and whole axes beside it are regrouped
        return tensor.with_shape((*before, *(length.size for length in new), *after))
    if place != 0 or not new:
        raise UnprovedError("a reshape of which the lengths do not prove where the cut axis goes")
    if len(old) == 1:
        return tensor.with_shape((*before, *_split(tensor, old[0], new, record), *after))
    if len(new) == 1:
        return tensor.with_shape((*before, _share(new[0], product(old), target, record), *after))
    raise UnprovedError("a reshape that merges and splits the cut axis at once")


def _same(old: Size, new: Length, old_rest: Sequence[Size], new_rest: Sequence[Length]) -> Size | None:
    """The axis that both shapes begin with, or None."""
    if old == new.size:
        return old
    if old.cut or old.rest or not new.size.inferred:
        return None
    # -1 stands for this axis if the lengths behind it multiply to the same
    behind = product(old_rest)
    return old if behind.factors == product(length.size for length in new_rest).factors else None


def _split(tensor: Tensor, axis: Size, new: list[Length], record: Record) -> list[Size]:
    """The cut axis becomes several: a rank's share is a share of the first, whose elements stay together."""
    first, rest = new[0], new[1:]
    if tensor.fused and first.size.factors in (("2",), ("3",)) and len(rest) > 1:
        (layer,) = tensor.layers
        record.parts[layer] = int(str(first.size.factors[0]))
        return [first.size, *_split(Tensor(tensor.shape, layers=tensor.layers), axis, rest, record)]
    if any(length.size.cut for length in rest):
        raise UnprovedError("a reshape with the share of a length behind another length")
    share = _share(first, axis, new, record)
    for layer in tensor.layers:
        if first.term is not None and not first.size.cut and not first.size.inferred:
            record.heads.setdefault((layer, tensor.part), first.term)
        elif len(rest) == 1 and rest[0].term is not None and not rest[0].size.inferred:
            record.widths.setdefault((layer, tensor.part), rest[0].term)
    return [share, *(length.size for length in rest)]


def _share(length: Length, axis: Size, target: Sequence[Length], record: Record) -> Size:
    """An entry of the new shape as a rank's share; its place in the source is put down if it states the whole."""
    if length.size.inferred or length.size.cut:
        return Size(axis.factors if length.size.inferred else length.size.factors, cut=True)
    if length.term is None:
        raise UnprovedError("a reshape by a shape that is computed elsewhere and states the whole length")
    others = [other for other in target if other is not length]
    if any(other.size.inferred for other in others) or isinstance(length.term.node, cst.Integer | cst.Subscript):
        record.shares[length.term.node] = length.term
    else:
        record.inferred[length.term.node] = length.term
    return Size(length.size.factors, cut=True)


__all__ = ["INFERRED", "Length", "reshape"]
