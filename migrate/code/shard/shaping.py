"""Reshapes, expansions, chunks and splits of tensors while the flow of a method is followed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import libcst as cst

from migrate.code.shard import operations as ops
from migrate.code.shard.elements import written_number
from migrate.code.shard.expressions import Expressions
from migrate.code.shard.record import Term
from migrate.code.shard.reshape import Length, reshape
from migrate.code.shard.sizes import Size, product, quotient
from migrate.code.shard.values import (
    Items,
    Tensor,
    UnprovedError,
    Value,
    size_of,
)


@dataclass(frozen=True)
class Argument:
    """An argument of a call."""

    name: str | None
    value: Value
    node: cst.BaseExpression
    star: str = ""


class Shaping(Expressions):
    """Methods that give a tensor another shape or cut it into pieces."""

    def _shaped(self, name: str, tensor: Tensor, given: Sequence[Argument]) -> Value:
        lengths = self._lengths([a for a in given if a.name not in ("dtype",)])
        if name == "permute":
            order = [_number_of(length) for length in lengths]
            if tensor.shape is not None and tensor.shape[0].rest and len(order) >= len(tensor.shape):
                self.spread(tensor.shape[0], len(order) - len(tensor.shape) + 1)
                tensor = replace(tensor, shape=self.expanded(tensor.shape))
            if None in order or len(order) != len(tensor.shape or ()):
                return ops.transposed(tensor, lambda axes: axes) if not tensor.is_cut else self._refused(name)
            return ops.transposed(tensor, lambda axes: [axes[i] for i in order])  # type: ignore[index]
        if name == "unflatten":
            dim = written_number(given[0].node)
            lengths = self._lengths(given[1:])
            if dim is None or tensor.shape is None:
                return self._refused(name) if tensor.is_cut else tensor.with_shape(None)
            axis = ops.axis_from_end(tensor, dim) + len(tensor.shape)
            front = [Length(size) for size in tensor.shape[:axis]]
            lengths = [*front, *lengths, *(Length(size) for size in tensor.shape[axis + 1 :])]
        if name == "expand":
            return self._expanded_to(tensor, lengths)
        if not lengths:
            return self._refused(name) if tensor.is_cut else tensor.with_shape(None)
        if tensor.is_cut:
            tensor = self._fitted(tensor, lengths)
        return reshape(tensor, lengths, self.record)

    def _fitted(self, tensor: Tensor, lengths: Sequence[Length]) -> Tensor:
        """Unknown leading axes that the new shape names one by one: `view(x.shape[0], x.shape[1], ...)`."""
        assert tensor.shape is not None
        if not tensor.shape[0].rest or (lengths and lengths[0].size.rest):
            return tensor
        rest = tensor.shape[0].factors[0]
        count = 0
        while count < len(lengths) and lengths[count].size.factors == (f"{rest}.{count}",):
            count += 1
        behind = product(length.size for length in lengths[count:])
        if count and behind.factors == product(tensor.shape[1:]).factors:
            return replace(tensor, shape=(*(length.size for length in lengths[:count]), *tensor.shape[1:]))
        return tensor

    def _refused(self, name: str) -> Value:
        raise UnprovedError(f"{name} of a cut tensor by a shape that is computed elsewhere")

    def _lengths(self, given: Sequence[Argument]) -> list[Length]:
        found: list[Length] = []
        for argument in given:
            if isinstance(argument.value, Items):
                for item in argument.value.items:
                    found.append(Length(size_of(item), self.terms.get(id(item))))
            else:
                found.append(Length(size_of(argument.value), Term(argument.node, self.frame.name)))
        return found

    def _expanded_to(self, tensor: Tensor, lengths: Sequence[Length]) -> Value:
        if tensor.shape is None or len(lengths) < len(tensor.shape):
            return self._refused("expand") if tensor.is_cut else tensor.with_shape(None)
        offset = len(lengths) - len(tensor.shape)
        shape: list[Size] = []
        for i, length in enumerate(lengths):
            old = tensor.shape[i - offset] if i >= offset else None
            if old is not None and old.cut:
                if not length.size.inferred and not length.size.cut:
                    if length.term is None:
                        return self._refused("expand")
                    self.record.shares[length.term.node] = length.term
                shape.append(old)
            else:
                shape.append(old if length.size.inferred and old is not None else length.size)
        return tensor.with_shape(tuple(shape))

    def _pieces(self, name: str, tensor: Tensor, given: Sequence[Argument]) -> Value:
        """`chunk` and `split`."""
        dim = named_dim(given[1:], 0, 0)
        sizes = given[0].value
        if not tensor.is_cut:
            count = len(sizes.items) if isinstance(sizes, Items) else None
            if name == "chunk":
                count = written_number(given[0].node)
            piece = tensor.with_shape(None)
            return Items((piece,) * count) if count else Tensor(None, tensor.origins, None, tensor.layers)
        if dim is None or tensor.shape is None:
            raise UnprovedError(f"{name} of a cut tensor along an axis that is computed")
        axis = ops.axis_from_end(tensor, dim)
        along_cut = axis == tensor.cut_axis
        if along_cut and not tensor.fused:
            raise UnprovedError(f"{name} along the cut axis of what is not the output of one layer")
        if isinstance(sizes, Items):
            terms = [self.terms.get(id(item)) for item in sizes.items]
            if along_cut:
                self._fused(tensor, [t for t in terms if t is not None], len(sizes.items))
            lengths = [size_of(item) for item in sizes.items]
        else:
            count = self._count(name, tensor, axis, given[0])
            if along_cut:
                (layer,) = tensor.layers
                self.record.parts[layer] = count
                if name == "split":
                    self.record.shares[given[0].node] = Term(given[0].node, self.frame.name)
            lengths = [quotient(tensor.shape[axis], Size((str(count),)))] * count
        pieces = []
        for number, length in enumerate(lengths):
            shape = list(tensor.shape)
            shape[axis] = Size(length.factors, cut=along_cut)
            pieces.append(replace(tensor.with_shape(tuple(shape)), part=number if along_cut else tensor.part))
        return Items(tuple(pieces))

    def _fused(self, tensor: Tensor, terms: list[Term], count: int) -> None:
        if len(terms) != count:
            raise UnprovedError("the widths of the parts of a fused layer are computed elsewhere")
        (layer,) = tensor.layers
        self.record.parts[layer] = terms
        for term in terms:
            self.record.shares[term.node] = term

    def _count(self, name: str, tensor: Tensor, axis: int, argument: Argument) -> int:
        if name == "chunk":
            count = written_number(argument.node)
        else:
            assert tensor.shape is not None
            ratio = quotient(tensor.shape[axis], size_of(argument.value)).factors
            count = int(str(ratio[0])) if len(ratio) == 1 and str(ratio[0]).isdigit() else None
        if count is None:
            raise UnprovedError(f"{name} of a cut tensor into a number of parts that is not written there")
        return count


def named_dim(given: Sequence[Argument], position: int, default: int | None = None, name: str = "dim") -> int | None:
    for argument in given:
        if argument.name in (name, "axis", "start_dim"):
            return written_number(argument.node)
    positional = [a for a in given if a.name is None]
    return written_number(positional[position].node) if position < len(positional) else default


def named_dims(given: Sequence[Argument]) -> list[int] | None:
    node = next((a.node for a in given if a.name in ("dim", "axis")), None)
    if node is None:
        node = next((a.node for a in given if a.name is None), None)
    if isinstance(node, cst.Tuple | cst.List):
        found = [written_number(element.value) for element in node.elements]
        return None if None in found else [n for n in found if n is not None]
    single = None if node is None else written_number(node)
    return None if single is None else [single]


def _number_of(length: Length) -> int | None:
    return written_number(length.term.node) if length.term is not None else None
