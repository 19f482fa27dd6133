"""Methods of tensors while the flow of a method is followed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import libcst as cst

from migrate.code.shard import operations as ops
from migrate.code.shard.elements import written_number
from migrate.code.shard.shaping import Argument, Shaping, named_dim, named_dims
from migrate.code.shard.sizes import unknown
from migrate.code.shard.values import (
    Constant,
    Items,
    Method,
    Tensor,
    UnprovedError,
    Value,
    is_cut,
    size_of,
)

DROPOUT = "dropout between the cut layers drops the same places of every rank's share"


class TensorMethods(Shaping):
    """Methods of tensors, and torch's functions of the same names."""

    def _note(self, text: str) -> None:
        if text not in self.record.notes:
            self.record.notes.append(text)

    def _note_attention(self, *tensors: Tensor) -> None:
        for tensor in tensors:
            self.record.attention |= tensor.layers

    def _cache_update(self, given: Sequence[Argument]) -> Value:
        """`cache.update(key, value, layer)` of a transformers cache: what it gives is longer along the sequence."""
        found = []
        for argument in given[:2]:
            tensor = argument.value
            assert isinstance(tensor, Tensor) and tensor.shape is not None
            if tensor.cut_axis == -2:
                raise UnprovedError("a cache is given tensors that are cut along the sequence")
            shape = list(tensor.shape)
            shape[-2] = unknown()
            found.append(tensor.with_shape(tuple(shape)))
        self._note("the cache holds this rank's heads of keys and values")
        return Items(tuple(found))

    def _softmax(self, tensor: Tensor, dim: int | None) -> Value:
        if dim is None and tensor.is_cut:
            raise UnprovedError("softmax of a cut tensor along an axis that is computed")
        if tensor.is_cut and dim is not None:
            ops.along(tensor, [dim], what="softmax")
        self._note_attention(tensor)
        return tensor.with_shape(tensor.shape)

    def _method(self, method: Method, given: Sequence[Argument]) -> Value:
        tensor = self.known(method.receiver)
        assert isinstance(tensor, Tensor)
        name = method.name.removesuffix("_") if not method.name.startswith("_") else method.name
        values = [a.value for a in given]
        if (
            name in ops.WITHOUT_GRADIENT
            and name not in ("size", "dim")
            and not any(is_cut(v) for v in [tensor, *values])
        ):
            return Tensor(None, frozenset(), None, tensor.layers)
        if name == "size":
            shape = self.shape(tensor)
            if not given or not isinstance(shape, Items):
                return shape
            return self.element(shape, cst.Index(given[0].node), given[0].node)
        if name in ("to", "type_as", "type", "float", "half", "bfloat16", "double", "contiguous", "clone"):
            return tensor.with_shape(tensor.shape)
        if name in ("view", "reshape", "expand", "permute", "unflatten"):
            return self._shaped(name, tensor, given)
        if name in ("transpose", "swapaxes", "swapdims") and len(given) == 2:
            dims = [written_number(a.node) for a in given]
            if None not in dims:
                return ops.swapped(tensor, dims[0], dims[1])  # type: ignore[arg-type]
        if name in ("chunk", "split", "tensor_split"):
            return self._pieces(name, tensor, given)
        if name in ("matmul", "bmm", "__matmul__"):
            return self.multiplied(tensor, values[0], (method.node, given[0].node))
        if name == "dropout" and tensor.is_cut:
            self._note(DROPOUT)
        if name in ops.ELEMENTWISE:
            return self.combined([(tensor, method.node), *((a.value, a.node) for a in given)])
        if not tensor.is_cut:
            if name in ("unsqueeze", "squeeze", "flatten", "mean", "sum", "softmax", "repeat_interleave"):
                if name == "softmax":
                    self._note_attention(tensor)
                return replace(tensor.with_shape(None), layers=tensor.layers)
            if name == "update" and len(given) >= 2 and all(is_cut(a.value) for a in given[:2]):
                return self._cache_update(given)
            return self.mixed([tensor, *values], name)
        return self._cut_method(name, tensor, given)

    def _cut_method(self, name: str, tensor: Tensor, given: Sequence[Argument]) -> Value:
        assert tensor.shape is not None
        if name in ops.ALONG_AXIS:
            dim = named_dim(given, 0)
            return self._softmax(tensor, dim) if name != "cumsum" else self._along(name, tensor, dim)
        if name in ops.REDUCTIONS:
            dims = named_dims(given)
            if dims is None:
                raise UnprovedError(f"{name} over all elements of a cut tensor")
            keepdim = any(a.name in ("keepdim", "keepdims") and a.value == Constant(True) for a in given)
            return ops.reduced(tensor, dims, keepdim or (len(given) > 1 and given[1].value == Constant(True)))
        dim = named_dim(given, 0)
        if name == "unsqueeze" and dim is not None:
            return ops.with_axis(tensor, dim)
        if name == "squeeze" and dim is not None:
            return ops.without_axis(tensor, dim)
        if name == "flatten":
            start, end = dim, named_dim(given[1:], 0, -1, "end_dim")
            if start is not None and end is not None:
                return ops.flattened(tensor, start, end)
        if name == "repeat_interleave" and given:
            along = named_dim(given[1:], 0)
            if along is not None:
                return ops.repeated(tensor, along, size_of(given[0].value))
        if name == "view_as_complex":
            return ops.as_complex(tensor)
        if name == "view_as_real":
            return ops.as_real(tensor)
        if name == "unbind":
            return self._unbound(tensor, 0 if dim is None else dim)
        raise UnprovedError(f"{name} of a cut tensor")

    def _along(self, name: str, tensor: Tensor, dim: int | None) -> Value:
        if dim is None:
            raise UnprovedError(f"{name} of a cut tensor along an axis that is computed")
        ops.along(tensor, [dim], what=name)
        return tensor.with_shape(tensor.shape)

    def _unbound(self, tensor: Tensor, dim: int) -> Value:
        assert tensor.shape is not None
        axis = ops.axis_from_end(tensor, dim) + len(tensor.shape)
        count = tensor.shape[axis].factors
        if tensor.shape[axis].cut or len(count) != 1 or not str(count[0]).isdigit():
            raise UnprovedError("unbind of a cut tensor along an axis whose length is not written there")
        shape = (*tensor.shape[:axis], *tensor.shape[axis + 1 :])
        return Items((tensor.with_shape(shape),) * int(str(count[0])))
