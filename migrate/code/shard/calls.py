"""Values of calls: layers, torch's functions and methods, functions and modules of the repository."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

import libcst as cst

from migrate.code.context import code_of
from migrate.code.shard import operations as ops
from migrate.code.shard.expressions import Expressions, _number, constructor_frame
from migrate.code.shard.record import Term
from migrate.code.shard.reshape import Length, reshape
from migrate.code.shard.sizes import Size, named, product, quotient, unknown
from migrate.code.shard.values import (
    Callable,
    Closure,
    Constant,
    Instance,
    Items,
    Layer,
    LayerRef,
    Method,
    Number,
    Opaque,
    Tensor,
    Torch,
    UnprovedError,
    Value,
    is_cut,
    size_of,
    tensors_in,
)

MAX_DEPTH = 12
DROPOUT = "dropout between the cut layers drops the same places of every rank's share"
ATTENTION_FUNCTIONS = "ALL_ATTENTION_FUNCTIONS"
"""transformers' registry: every entry takes (module, query, key, value, mask, ...), heads on the axis before last but
one, and gives the output with heads on the axis before last, and weights."""


@dataclass(frozen=True)
class Argument:
    """An argument of a call."""

    name: str | None
    value: Value
    node: cst.BaseExpression
    star: str = ""


class Calls(Expressions):
    """Evaluates calls."""

    depth = 0

    @abstractmethod
    def run(self, function: Callable, arguments: dict[str, Value]) -> Value:
        """What a function of the repository returns."""

    def _call(self, node: cst.Call) -> Value:
        function = self.value(node.func)
        given = [
            Argument(a.keyword.value if a.keyword else None, self.known(self.value(a.value)), a.value, a.star)
            for a in node.args
        ]
        match function:
            case Layer():
                return self._layer(function.ref, given)
            case Method():
                return self._method(function, given)
            case Torch(module=True):
                return self._torch_module(function, given)
            case Torch():
                return self._torch(function.name, given, node)
            case Callable():
                return self._user(function, given, node)
            case Instance():
                return self._instance(function, given, node)
            case Closure():
                return self._lambda_call(function, [a.value for a in given])
        return self._unknown(given, node)

    def known(self, value: Value) -> Value:
        """A tensor with the axes that have become known since it was made."""
        if isinstance(value, Tensor) and value.shape is not None:
            return replace(value, shape=self.expanded(value.shape))
        return value

    def _unknown(self, given: Sequence[Argument], node: cst.Call) -> Value:
        keeps = isinstance(node.func, cst.Attribute) and node.func.attr.value == "update"
        if keeps and len(given) >= 2 and all(isinstance(a.value, Tensor) and a.value.is_cut for a in given[:2]):
            return self._cache_update(given)
        if isinstance(node.func, cst.Attribute) and any(is_cut(a.value) for a in given):
            text = code_of(node.func)
            if ATTENTION_FUNCTIONS in text:
                return Opaque(ATTENTION_FUNCTIONS)
        return self.mixed([a.value for a in given], code_of(node.func))

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

    # -- linear layers
    def _layer(self, ref: LayerRef, given: Sequence[Argument]) -> Value:
        if len(given) != 1 or not isinstance(given[0].value, Tensor):
            if any(is_cut(a.value) for a in given) or ref in self.cuts:
                raise UnprovedError(f"{ref.attribute} is called with something else than one tensor")
            return Tensor(None, frozenset({"?"}), None, frozenset({ref}))
        tensor, node = given[0].value, given[0].node
        self.record.calls.append(ref)
        self.record.fed_by[ref] = self.record.fed_by.get(ref, frozenset()) | tensor.layers
        leading = (Size((f"*{unknown().factors[0]}",), rest=True),) if tensor.shape is None else tensor.shape[:-1]
        width, cut = self.out_features(ref), self.cuts.get(ref)
        if cut == "column":
            if tensor.is_cut:
                raise UnprovedError(f"{ref.attribute} would be cut by columns, but its input is cut already")
            self._into_column(tensor, node)
            return Tensor((*leading, replace(width, cut=True)), frozenset(), None, frozenset({ref}), fused=True)
        if cut == "row":
            if tensor.cut_axis != -1:
                raise UnprovedError(f"{ref.attribute} would be cut by rows, but the last axis of its input is not cut")
        elif tensor.is_cut:
            raise UnprovedError(f"{ref.attribute} is whole, but its input is cut")
        else:
            self.escape(tensor)
        return Tensor((*leading, width), frozenset({"?"}), None, frozenset({ref}))

    def out_features(self, ref: LayerRef) -> Size:
        """Width of a layer's output, by the factors in its constructor call."""
        layer, layers = self.inventory.of(ref), self.inventory.classes[ref.owner]
        argument = (layer.arguments or {}).get("out_features")
        if argument is None:
            return unknown()
        before, self.frame = self.frame, constructor_frame(layers)
        try:
            return size_of(self.value(argument.value))
        finally:
            self.frame = before

    def _into_column(self, tensor: Tensor, node: cst.BaseExpression) -> None:
        if tensor.exact is not None:
            origin = f"param:{tensor.exact}"
            self.record.column_inputs[origin] = self.record.column_inputs.get(origin, 0) + 1
            if origin in self.entered:
                return
        self.escape(tensor)
        if not self.frame.is_root:
            raise UnprovedError("the input of a column layer is made outside the class that is cut", node)
        self.record.entered[node] = node

    # -- the repository's own
    def _user(self, function: Callable, given: Sequence[Argument], node: cst.Call) -> Value:
        if not any(is_cut(a.value) for a in given) and function.receiver is None and self.cuts:
            return self._whole_call(given, node)
        if any(a.star for a in given):
            return (
                self._unknown([a for a in given if not (a.star == "**" and not is_cut(a.value))], node)
                if any(a.star == "*" for a in given)
                else self._bound(function, [a for a in given if not a.star], node)
            )
        return self._bound(function, given, node)

    def _whole_call(self, given: Sequence[Argument], node: cst.Call) -> Value:
        """A function without cut arguments gives nothing that is cut."""
        return self.mixed([a.value for a in given], code_of(node.func))

    def _bound(self, function: Callable, given: Sequence[Argument], node: cst.Call) -> Value:
        if self.depth >= MAX_DEPTH:
            return self._whole_call(given, node)
        info = function.info
        names = [p.name.value for p in info.parameters]
        keyword_only = {p.name.value for p in info.node.params.kwonly_params}
        positional = [n for n in names if n not in keyword_only]
        arguments: dict[str, Value] = {}
        for position, argument in enumerate(a for a in given if a.name is None):
            if position >= len(positional):
                return self._whole_call(given, node)
            arguments[positional[position]] = argument.value
        for argument in given:
            if argument.name in names:
                arguments[argument.name] = argument.value
            elif argument.name is not None and is_cut(argument.value):
                raise UnprovedError(f"{code_of(node.func)}: a cut tensor is passed as {argument.name}")
        return self.run(function, arguments)

    def _instance(self, module: Instance, given: Sequence[Argument], node: cst.Call) -> Value:
        forward = self.symbols.method(module.name, "forward")
        if forward is None or (self.cuts and not any(is_cut(a.value) for a in given)):
            return self._whole_call(given, node)
        return self._bound(Callable(forward, replace(module, is_root=False)), given, node)

    def _lambda_call(self, function: Closure, given: Sequence[Value]) -> Value:
        before = dict(self.frame.env)
        for parameter, value in zip(function.node.params.params, given, strict=False):
            self.frame.env[parameter.name.value] = value
        try:
            return self.value(function.node.body)
        finally:
            self.frame.env = before

    # -- torch
    def _torch_module(self, module: Torch, given: Sequence[Argument]) -> Value:
        tensors = tensors_in(*(a.value for a in given))
        if not any(t.is_cut for t in tensors):
            if module.name in ops.ELEMENTWISE_MODULES and len(tensors) == 1:
                return tensors[0].with_shape(tensors[0].shape)
            return self.mixed([a.value for a in given], module.name)
        if (module.name in ops.ELEMENTWISE_MODULES or module.name.endswith("ACT2FN")) and len(given) == 1:
            if module.name == "torch.nn.Dropout":
                self._note(DROPOUT)
            return tensors[0].with_shape(tensors[0].shape)
        if module.name == "torch.nn.Softmax" and len(given) == 1:
            dim = next((_number(a.value) for a in module.arguments), None)
            return self._softmax(tensors[0], dim)
        raise UnprovedError(f"{module.name} is applied to a cut tensor, and its parameters or its axis are not cut")

    def _torch(self, name: str, given: Sequence[Argument], node: cst.Call) -> Value:
        last = name.rpartition(".")[2]
        if name in ("builtins.map", "builtins.zip", "builtins.isinstance") or not name.startswith("torch."):
            return self._library(name, given, node)
        values = [a.value for a in given]
        if last == "scaled_dot_product_attention":
            return self._attention(given)
        if last in ("cat", "concat", "stack") and values and isinstance(values[0], Items):
            return self._cat(last, given)
        if last == "einsum" and isinstance(values[0], Constant):
            tensors = self._entered(list(given[1:]))
            return ops.summed(str(values[0].value), tensors)
        if last in ("matmul", "bmm") and len(values) >= 2:
            return self.multiplied(values[0], values[1], (given[0].node, given[1].node))
        if last in ops.WITHOUT_GRADIENT and not any(is_cut(v) for v in values):
            return Tensor()
        if values and isinstance(values[0], Tensor):
            return self._method(Method(values[0], last, given[0].node), given[1:])
        found = [a for a in given if isinstance(a.value, Tensor)]
        if last in ops.ELEMENTWISE and found:
            return self.combined([(a.value, a.node) for a in given])
        return self.mixed(values, name)

    def _library(self, name: str, given: Sequence[Argument], node: cst.Call) -> Value:
        values = [a.value for a in given]
        if name in ("builtins.int", "builtins.tuple", "builtins.list") and len(values) == 1:
            return values[0]
        if name == "builtins.enumerate" and len(values) == 1 and isinstance(values[0], Items):
            return Items(tuple(Items((Number(named(str(i))), v)) for i, v in enumerate(values[0].items)))
        if name == "builtins.map" and len(values) == 2:
            function, over = values
            if isinstance(function, Closure) and isinstance(over, Items):
                return Items(tuple(self._lambda_call(function, [item]) for item in over.items))
        if name == "builtins.getattr" and values and isinstance(values[0], Instance | Opaque):
            return Opaque()
        return self.mixed(values, name)

    def _attention(self, given: Sequence[Argument]) -> Value:
        names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
        bound = {a.name or names[i]: a for i, a in enumerate(given)}
        parts = [bound[n].value for n in names[:3] if n in bound]
        if len(parts) != 3 or not all(isinstance(p, Tensor) for p in parts):
            return self.mixed([a.value for a in given], "scaled_dot_product_attention")
        tensors = tensors_in(*parts)
        mask = bound.get("attn_mask")
        if mask is not None and isinstance(mask.value, Tensor) and any(t.is_cut for t in tensors):
            self.enter(mask.value, mask.node)
        self._note_attention(*tensors)
        return ops.attended(*tensors)

    def _note(self, text: str) -> None:
        if text not in self.record.notes:
            self.record.notes.append(text)

    def _note_attention(self, *tensors: Tensor) -> None:
        for tensor in tensors:
            self.record.attention |= tensor.layers

    def _cat(self, last: str, given: Sequence[Argument]) -> Value:
        items = given[0].value
        assert isinstance(items, Items)
        tensors = tensors_in(*items.items)
        if not any(t.is_cut for t in tensors):
            return self.mixed([a.value for a in given], last) if not tensors else ops.concatenated(tensors, 0)
        dim = _dim(given[1:], 0, 0)
        if dim is None:
            raise UnprovedError(f"{last} of cut tensors along an axis that is computed")
        if last == "stack":
            tensors = [ops.with_axis(t, dim) for t in tensors]
        return ops.concatenated(list(tensors), dim)

    def _entered(self, given: Sequence[Argument]) -> list[Tensor]:
        tensors = [(a.value, a.node) for a in given if isinstance(a.value, Tensor)]
        if any(t.is_cut for t, _ in tensors):
            return [self.enter(t, node) for t, node in tensors]
        return [t for t, _ in tensors]

    def _softmax(self, tensor: Tensor, dim: int | None) -> Value:
        if dim is None and tensor.is_cut:
            raise UnprovedError("softmax of a cut tensor along an axis that is computed")
        if tensor.is_cut and dim is not None:
            ops.along(tensor, [dim], what="softmax")
        self._note_attention(tensor)
        return tensor.with_shape(tensor.shape)

    # -- methods of tensors
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
            dims = [_number(a.node) for a in given]
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
            dim = _dim(given, 0)
            return self._softmax(tensor, dim) if name != "cumsum" else self._along(name, tensor, dim)
        if name in ops.REDUCTIONS:
            dims = _dims(given)
            if dims is None:
                raise UnprovedError(f"{name} over all elements of a cut tensor")
            keepdim = any(a.name in ("keepdim", "keepdims") and a.value == Constant(True) for a in given)
            return ops.reduced(tensor, dims, keepdim or (len(given) > 1 and given[1].value == Constant(True)))
        dim = _dim(given, 0)
        if name == "unsqueeze" and dim is not None:
            return ops.with_axis(tensor, dim)
        if name == "squeeze" and dim is not None:
            return ops.without_axis(tensor, dim)
        if name == "flatten":
            start, end = dim, _dim(given[1:], 0, -1, "end_dim")
            if start is not None and end is not None:
                return ops.flattened(tensor, start, end)
        if name == "repeat_interleave" and given:
            along = _dim(given[1:], 0)
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

    def _shaped(self, name: str, tensor: Tensor, given: Sequence[Argument]) -> Value:
        lengths = self._lengths([a for a in given if a.name not in ("dtype",)])
        if name == "permute":
            order = [_number_of(length) for length in lengths]
            if None in order or len(order) != len(tensor.shape or ()):
                return ops.transposed(tensor, lambda axes: axes) if not tensor.is_cut else self._refused(name)
            return ops.transposed(tensor, lambda axes: [axes[i] for i in order])  # type: ignore[index]
        if name == "unflatten":
            dim = _number(given[0].node)
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
        dim = _dim(given[1:], 0, 0)
        sizes = given[0].value
        if not tensor.is_cut:
            count = (
                len(sizes.items) if isinstance(sizes, Items) else _number(given[0].node) if name == "chunk" else None
            )
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
            count = _number(argument.node)
        else:
            assert tensor.shape is not None
            ratio = quotient(tensor.shape[axis], size_of(argument.value)).factors
            count = int(str(ratio[0])) if len(ratio) == 1 and str(ratio[0]).isdigit() else None
        if count is None:
            raise UnprovedError(f"{name} of a cut tensor into a number of parts that is not written there")
        return count


def _dim(given: Sequence[Argument], position: int, default: int | None = None, name: str = "dim") -> int | None:
    for argument in given:
        if argument.name in (name, "axis", "start_dim"):
            return _number(argument.node)
    positional = [a for a in given if a.name is None]
    return _number(positional[position].node) if position < len(positional) else default


def _dims(given: Sequence[Argument]) -> list[int] | None:
    node = next((a.node for a in given if a.name in ("dim", "axis")), None)
    if node is None:
        node = next((a.node for a in given if a.name is None), None)
    if isinstance(node, cst.Tuple | cst.List):
        found = [_number(element.value) for element in node.elements]
        return None if None in found else [n for n in found if n is not None]
    single = None if node is None else _number(node)
    return None if single is None else [single]


def _number_of(length: Length) -> int | None:
    return _number(length.term.node) if length.term is not None else None
