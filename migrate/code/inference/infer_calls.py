"""Types of calls: torch by the table, functions and classes of the repository, methods, the standard library."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod

import libcst as cst

from migrate.code.inference.annotations import Annotations
from migrate.code.inference.evidence import only_tensors_have
from migrate.code.inference.library_types import called
from migrate.code.inference.types import (
    DEVICE,
    NONE,
    NUMBER,
    PARAMETER,
    PENDING,
    SHAPE,
    TENSOR,
    TENSORS,
    UNKNOWN,
    VALUE,
    Type,
    from_returns,
    instance,
    join,
    join_all,
    join_known,
    list_of,
    tuple_of,
)
from migrate.code.names.resolve import Resolver
from migrate.code.names.symbols import MODULE, Facts, FunctionInfo, Symbols

Env = dict[str, Type]
Arguments = list[tuple[cst.Arg, Type]]

_TENSOR_METHODS = {
    "size": SHAPE, "item": NUMBER, "tolist": VALUE, "numpy": VALUE, "dim": NUMBER, "numel": NUMBER, "nelement": NUMBER,
    "element_size": NUMBER, "stride": SHAPE, "is_contiguous": NUMBER, "get_device": NUMBER, "backward": NONE,
    "chunk": list_of(TENSOR), "split": list_of(TENSOR), "unbind": list_of(TENSOR), "tensor_split": list_of(TENSOR),
}  # fmt: skip
_SAME_ELEMENTS = {
    "builtins.list", "builtins.tuple", "builtins.iter", "builtins.sorted", "builtins.reversed", "builtins.set",
    "itertools.cycle", "itertools.islice", "tqdm.tqdm", "tqdm.auto.tqdm", "copy.copy", "copy.deepcopy",
}  # fmt: skip
_COPIES = {"copy.copy", "copy.deepcopy"}
_KNOWN_RESULTS = {"torch.nn.Parameter": PARAMETER, "torch.device": DEVICE, "torch.cuda.is_available": NUMBER}
_MULTIPLE_RESULTS = {"torch.nn.LSTM", "torch.nn.GRU", "torch.nn.RNN", "torch.nn.MultiheadAttention"}
_CONTAINERS = {"torch.nn.ModuleList", "torch.nn.Sequential", "torch.nn.ModuleDict", "torch.nn.ParameterList"}
_PLAIN_LIBRARIES = sys.stdlib_module_names | {
    "numpy",
    "yaml",
    "tqdm",
    "regex",
    "tiktoken",
    "sentencepiece",
    "tokenizers",
}
"""Whose functions give no tensors."""
_HANDING_ON = {"functools", "itertools", "operator"}
"""Of these, the ones whose functions give what other functions and containers gave them."""


class CallInference(ABC):
    """The part of `Inference` that knows what calls return; call sites feed `facts`."""

    def __init__(self, symbols: Symbols, facts: Facts, resolver: Resolver) -> None:
        self.symbols, self.facts, self.resolver = symbols, facts, resolver
        self.annotations = Annotations(symbols, resolver)
        self.owner: str | None = None
        """Qualified name of the class whose method is being evaluated, for `super()`."""

    @abstractmethod
    def type_of(self, node: cst.BaseExpression, env: Env) -> Type:
        """Type of an expression."""

    @abstractmethod
    def member(self, base: Type, attribute: str) -> Type | None:
        """Type of `object.attribute`; None when nothing is known."""

    @abstractmethod
    def show(self, node: cst.BaseExpression, found: Type, env: Env) -> None:
        """Replace what was recorded for an expression by what its use shows."""

    def call(self, node: cst.Call, env: Env) -> Type:
        function = self.type_of(node.func, env)
        arguments = [(a, self.type_of(a.value, env)) for a in node.args]
        if function.kind == "torch":
            return self._torch_call(function.name, arguments)
        if function.kind == "class":
            if init := self.symbols.method(function.name, "__init__"):
                self.pass_arguments(init, arguments)
            return instance(function.name)
        if function.kind in ("function", "method") and function.name in self.symbols.functions:
            return self._user_call(self.symbols.functions[function.name], arguments)
        if function.kind in ("function", "external"):
            builtin = self._library_call(function.name, node, arguments, env)
            if builtin is not None:
                return builtin
        if function.kind == "object":
            return join_all(tuple(self._object_call(one, arguments) for one in function.alternatives))
        if isinstance(node.func, cst.Attribute):
            return self._method_call(node.func, arguments, env)
        return PENDING if function.kind == "pending" else UNKNOWN

    def _torch_call(self, name: str, arguments: Arguments) -> Type:
        if name in _CONTAINERS:
            found = [t if name == "torch.nn.Sequential" and len(arguments) > 1 else t.element for _, t in arguments]
            return instance(name, join_known([t for t in found if t.is_known]))
        parent, _, _ = name.rpartition(".")
        if parent.startswith("torch.nn.functional") or (name.endswith(".forward") and self.symbols.is_module(parent)):
            default = TENSOR
        elif len(self.symbols.lineage(name)) > 1 or name in ("torch.Generator", "torch.utils.data.DataLoader"):
            default = instance(name)
        else:
            default = UNKNOWN
        for row in self.symbols.table.rows(name):
            found_type = from_returns(row.returns, name)
            if found_type.is_known:
                return found_type
        return _KNOWN_RESULTS.get(name, default)

    def _user_call(self, function: FunctionInfo, arguments: Arguments) -> Type:
        given = self.pass_arguments(function, arguments)
        returns = function.node.returns
        stated = Annotations(self.symbols, function.resolver).read(returns.annotation) if returns else None
        if stated is None and (returned := self.facts.passed_through.get(function.name)):
            return given.get(returned, UNKNOWN)
        return stated or self.facts.returns.get(function.name, PENDING)

    def pass_arguments(self, function: FunctionInfo, arguments: Arguments) -> Env:
        """Tell a function what it is called with; gives the arguments by parameter."""
        given: Env = {}
        position = 0
        names = {p.name.value for p in function.parameters}
        keyword_only = {p.name.value for p in function.node.params.kwonly_params}
        positional = [p.name.value for p in function.parameters if p.name.value not in keyword_only]
        for argument, found in arguments:
            if argument.star:
                break
            if argument.keyword is not None:
                if argument.keyword.value in names:
                    given[argument.keyword.value] = found
            elif position < len(positional):
                given[positional[position]] = found
                position += 1
        for name, found in given.items():
            self.facts.note_parameter(function.name, name, found)
        return given

    def _object_call(self, target: Type, arguments: Arguments) -> Type:
        method = self.symbols.method(target.name, "forward") if self.symbols.is_module(target.name) else None
        method = method or self.symbols.method(target.name, "__call__")
        if method:
            return self._user_call(method, arguments)
        if self.symbols.is_module(target.name):
            if target.name in _MULTIPLE_RESULTS:
                return tuple_of(TENSOR, UNKNOWN)
            return UNKNOWN if target.name == MODULE or target.name in self.symbols.classes else TENSOR
        return UNKNOWN

    def _method_call(self, function: cst.Attribute, arguments: Arguments, env: Env) -> Type:
        base = self.type_of(function.value, env)
        method = function.attr.value
        asked = base == UNKNOWN or (base == PENDING and isinstance(function.value, cst.Attribute))
        if asked and self._asks() and only_tensors_have(method, self.symbols):
            base = TENSOR
            self.show(function.value, base, env)
        if base.is_tensor:
            if method == "size" and arguments:
                return NUMBER
            if method in _TENSOR_METHODS:
                return _TENSOR_METHODS[method]
            if method in ("max", "min", "median", "mode") and arguments and arguments[0][1].kind == "number":
                return tuple_of(TENSOR, TENSOR)
            for row in self.symbols.table.rows(f"torch.Tensor.{method}"):
                found = from_returns(row.returns, "torch.Tensor")
                if found.is_known:
                    return found
            return tuple_of(TENSOR, TENSOR) if method in ("topk", "sort", "kthvalue") else TENSOR
        if base.kind == "tensors":
            return {"items": list_of(tuple_of(VALUE, TENSORS)), "keys": VALUE}.get(
                method, TENSORS if method == "to" else TENSOR
            )
        if base.kind == "object":
            if method in ("register_buffer", "register_parameter"):
                self._registered(base, arguments, TENSOR if method == "register_buffer" else PARAMETER)
            return join_all(tuple(self._object_method(one, method) for one in base.alternatives))
        if base.kind in ("list", "dict"):
            return self._container_method(base, method, [t for _, t in arguments], function.value, env)
        if base.kind in ("value", "number"):
            return VALUE
        return PENDING if base.kind == "pending" else UNKNOWN

    def _asks(self) -> bool:
        """Whether the use of an object may say what it is: after everything else has spoken, in a file with torch."""
        return self.facts.settled and self.resolver.source.imports_torch

    def _registered(self, base: Type, arguments: Arguments, kind: Type) -> None:
        """`self.register_buffer("mask", mask)` makes the attribute `mask`."""
        if arguments and isinstance(arguments[0][0].value, cst.SimpleString) and base.name in self.symbols.classes:
            self.facts.note_attribute(base.name, str(arguments[0][0].value.evaluated_value), kind)

    def _object_method(self, base: Type, method: str) -> Type:
        if self.symbols.is_module(base.name):
            if method in (
                "to",
                "cuda",
                "cpu",
                "eval",
                "train",
                "half",
                "float",
                "bfloat16",
                "double",
                "apply",
                "requires_grad_",
            ):
                return base
            if method == "parameters":
                return list_of(PARAMETER)
            if method == "named_parameters":
                return list_of(tuple_of(VALUE, PARAMETER))
            if method in ("modules", "children"):
                return list_of(instance(MODULE))
            if method in ("named_modules", "named_children"):
                return list_of(tuple_of(VALUE, instance(MODULE)))
            if method in ("items", "values") and base.items:
                return list_of(tuple_of(VALUE, base.items[0]) if method == "items" else base.items[0])
            if method == "state_dict":
                return Type("dict", items=(TENSOR,))
        member = self.symbols.torch_member(base.name, method)
        for row in self.symbols.table.rows(member) if member else ():
            if row.returns == "self":
                return base
            return from_returns(row.returns, base.name)
        return UNKNOWN

    def _library_call(self, name: str, node: cst.Call, arguments: Arguments, env: Env) -> Type | None:
        types = [t for argument, t in arguments if argument.keyword is None]
        first = types[0] if types else UNKNOWN
        if name in _SAME_ELEMENTS:
            return first if name in _COPIES else list_of(self.iterated(first)) if types else Type("list")
        if name == "builtins.next":
            return self.iterated(first)
        if name == "builtins.enumerate":
            return list_of(tuple_of(NUMBER, self.iterated(first)))
        if name == "builtins.filter" and len(types) == 2:
            return list_of(self.iterated(types[1]))
        if name == "builtins.map":
            return list_of(UNKNOWN)
        if name == "builtins.zip":
            return list_of(tuple_of(*[self.iterated(t) for t in types]))
        if name == "builtins.range":
            return list_of(NUMBER)
        if name in ("builtins.sum", "builtins.max", "builtins.min"):
            return self.iterated(first) if len(types) == 1 else join_all(tuple(types))
        if name == "builtins.super":
            return Type("super", self.owner or "")
        if name == "builtins.getattr" and len(arguments) >= 2:
            text = arguments[1][0].value
            if isinstance(text, cst.SimpleString):
                return self.member(first, str(text.evaluated_value)) or UNKNOWN
            return UNKNOWN
        if name == "typing.cast" and len(types) == 2:
            return self.annotations.read(node.args[0].value) or types[1]
        if name == "builtins.vars":
            return UNKNOWN
        if name.startswith("builtins."):
            return NUMBER if name in ("builtins.len", "builtins.int", "builtins.float", "builtins.abs") else VALUE
        if name.startswith("einx."):
            return join_all(tuple(TENSOR if t.is_tensor else t for t in types[1:] if t.kind != "number"))
        if name.startswith("einops."):
            return _einops(name, first)
        if (found := called(name)) is not None:
            return found
        library = name.split(".")[0]
        if library in _PLAIN_LIBRARIES:
            return UNKNOWN if library in _HANDING_ON else VALUE
        return None

    def _container_method(
        self, base: Type, method: str, given: list[Type], target: cst.BaseExpression, env: Env
    ) -> Type:
        if method in ("append", "insert", "extend", "appendleft", "add", "setdefault", "update"):
            added = given[-1].element if method in ("extend", "update") and given else given[-1] if given else UNKNOWN
            self.store_element(target, added, env)
            return NONE
        if method == "items":
            return list_of(tuple_of(VALUE, base.element))
        if method in ("pop", "popleft", "get"):
            return join(base.element, given[1]) or UNKNOWN if method == "get" and len(given) > 1 else base.element
        return list_of(base.element) if method in ("values", "copy") else VALUE

    def store_element(self, container: cst.BaseExpression, added: Type, env: Env) -> None:
        """`container[i] = added` or `container.append(added)` for a list or dict held by a name or an attribute."""
        if isinstance(container, cst.Name) and container.value in env:
            held = env[container.value]
            if held.kind in ("list", "dict"):
                env[container.value] = join(held, Type(held.kind, items=(added,))) or held
        elif isinstance(container, cst.Attribute):
            base, held = self.type_of(container.value, env), self.type_of(container, env)
            if base.kind == "object" and held.kind in ("list", "dict"):
                self.facts.note_attribute(base.name, container.attr.value, Type(held.kind, items=(added,)))

    def iterated(self, base: Type) -> Type:
        """What `for x in base` gives."""
        if base.kind == "object":
            lineage = self.symbols.lineage(base.name)
            if "torch.utils.data.DataLoader" in lineage:
                return TENSORS
            method = self.symbols.method(base.name, "__iter__")
            if method is not None:
                return self.facts.returns.get(method.name, PENDING).element
        if base.kind == "dict":
            return VALUE
        return base.element


def _einops(name: str, first: Type) -> Type:
    """Functions of einops give what they are given: tensors of tensors, arrays of arrays."""
    if name.startswith("einops.layers.torch."):
        return instance(name)
    function = name.rpartition(".")[2]
    given = first.element if first.kind in ("list", "tuple") else first
    given = TENSOR if given.is_tensor else given
    if function == "pack":
        return tuple_of(given, VALUE)
    if function == "unpack":
        return list_of(given)
    return given if function in ("rearrange", "repeat", "reduce", "einsum") else VALUE
