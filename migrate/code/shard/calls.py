"""Values of calls: layers, torch's functions and methods, functions and modules of the repository."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import libcst as cst

from migrate.code.context import code_of
from migrate.code.shard import operations as ops
from migrate.code.shard.elements import written_number
from migrate.code.shard.follower import constructor_frame
from migrate.code.shard.paths import module_paths
from migrate.code.shard.shaping import Argument, named_dim
from migrate.code.shard.sizes import Size, named, unknown
from migrate.code.shard.tensor_methods import DROPOUT, TensorMethods
from migrate.code.shard.values import (
    ATTENTION_FUNCTIONS,
    ATTENTION_INTERFACE,
    UNKNOWN,
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


class Calls(TensorMethods):
    """Evaluates calls."""

    depth = 0

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

    def _unknown(self, given: Sequence[Argument], node: cst.Call) -> Value:
        keeps = isinstance(node.func, cst.Attribute) and node.func.attr.value == "update"
        if keeps and len(given) >= 2 and all(isinstance(a.value, Tensor) and a.value.is_cut for a in given[:2]):
            return self._cache_update(given)
        return self.called([a.value for a in given], code_of(node.func))

    # -- linear layers
    def _layer(self, ref: LayerRef, given: Sequence[Argument]) -> Value:
        if len(given) != 1 or not isinstance(given[0].value, Tensor):
            if any(is_cut(a.value) for a in given) or ref in self.cuts:
                raise UnprovedError(f"{ref.attribute} is called with something else than one tensor")
            return replace(UNKNOWN, layers=frozenset({ref}))
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
            self.record.whole_places.add(node)
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
        if not self.may_change():
            raise UnprovedError("the input of a column layer is made outside the class that is cut", node)
        self.record.enter(node, self.frame.owner)

    # -- the repository's own
    def _user(self, function: Callable, given: Sequence[Argument], node: cst.Call) -> Value:
        if not any(is_cut(a.value) for a in given) and function.receiver is None and self.cuts:
            return self._whole_call(given, node)
        if any(a.star == "*" or is_cut(a.value) for a in given if a.star):
            return self._unknown(given, node)
        return self._bound(function, [a for a in given if not a.star], node)

    def _whole_call(self, given: Sequence[Argument], node: cst.Call) -> Value:
        """A function that is no method, without cut arguments: what it gives has the gradients of its arguments."""
        return self.mixed([a.value for a in given], code_of(node.func))

    def _bound(self, function: Callable, given: Sequence[Argument], node: cst.Call) -> Value:
        if self.depth >= MAX_DEPTH:
            return self._unknown(given, node)
        info = function.info
        names = [p.name.value for p in info.parameters]
        keyword_only = {p.name.value for p in info.node.params.kwonly_params}
        positional = [n for n in names if n not in keyword_only]
        arguments: dict[str, Value] = {}
        for position, argument in enumerate(a for a in given if a.name is None):
            if position >= len(positional):
                return self._unknown(given, node)
            arguments[positional[position]] = argument.value
        for argument in given:
            if argument.name in names:
                arguments[argument.name] = argument.value
            elif argument.name is not None and is_cut(argument.value):
                raise UnprovedError(f"{code_of(node.func)}: a cut tensor is passed as {argument.name}")
        return self.run(function, arguments)

    def _instance(self, module: Instance, given: Sequence[Argument], node: cst.Call) -> Value:
        forward = self.symbols.method(module.name, "forward")
        if forward is None:
            return self._unknown(given, node)
        function = Callable(forward, replace(module, is_root=False))
        if any(is_cut(a.value) for a in given) or self._holds_cuts(module.name):
            return self._user(function, given, node)
        before = self.frame
        try:
            found = self._user(function, given, node)
        except UnprovedError:  # nothing that is cut is in it, so nothing need be proved
            self.frame = before
            return self._unknown(given, node)
        return _without_gradient(found) if "torch.no_grad" in forward.decorators else found

    def _holds_cuts(self, name: str) -> bool:
        """Whether an object of a class has, or is made of objects that have, layers that are cut."""
        if any(owner in self.symbols.lineage(name) for owner in self.owners):
            return True
        below = module_paths(self.inventory, name).values()
        return any(layer is not None and layer.ref in self.cuts for layer in below)

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
            return self.called([a.value for a in given], module.name)
        if (module.name in ops.ELEMENTWISE_MODULES or module.name.endswith("ACT2FN")) and len(given) == 1:
            if module.name == "torch.nn.Dropout":
                self._note(DROPOUT)
            return tensors[0].with_shape(tensors[0].shape)
        if module.name == "torch.nn.Softmax" and len(given) == 1:
            dim = next((written_number(a.value) for a in module.arguments), None)
            return self._softmax(tensors[0], dim)
        raise UnprovedError(f"{module.name} is applied to a cut tensor, and its parameters or its axis are not cut")

    def _torch(self, name: str, given: Sequence[Argument], node: cst.Call) -> Value:
        last = name.rpartition(".")[2]
        if name in ("builtins.map", "builtins.zip", "builtins.isinstance") or not name.startswith("torch."):
            return self._library(name, given, node)
        if self.symbols.is_module(name):
            return Torch(name, module=True, arguments=tuple(node.args))
        values = [a.value for a in given]
        if last == "Parameter":
            return UNKNOWN
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
        if name.endswith(f"{ATTENTION_FUNCTIONS}.get_interface"):
            return values[-1] if values and isinstance(values[-1], Callable) else ATTENTION_INTERFACE
        if name == "builtins.enumerate" and len(values) == 1 and isinstance(values[0], Items):
            return Items(tuple(Items((Number(named(str(i))), v)) for i, v in enumerate(values[0].items)))
        if name == "builtins.map" and len(values) == 2:
            function, over = values
            if isinstance(function, Closure) and isinstance(over, Items):
                return Items(tuple(self._lambda_call(function, [item]) for item in over.items))
        if name == "builtins.getattr" and values and isinstance(values[0], Instance | Opaque):
            return Opaque()
        plain = name.split(".")[0] in ("builtins", "math", "logging", "warnings")
        return self.mixed(values, name) if plain else self.called(values, name)

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

    def _cat(self, last: str, given: Sequence[Argument]) -> Value:
        items = given[0].value
        assert isinstance(items, Items)
        tensors = tensors_in(*items.items)
        if not any(t.is_cut for t in tensors):
            return self.mixed([a.value for a in given], last) if not tensors else ops.concatenated(tensors, 0)
        dim = named_dim(given[1:], 0, 0)
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


def _without_gradient(value: Value) -> Value:
    """What a function under `torch.no_grad` gives."""
    if isinstance(value, Items):
        return Items(tuple(_without_gradient(item) for item in value.items))
    return replace(value, origins=frozenset()) if isinstance(value, Tensor) else value
