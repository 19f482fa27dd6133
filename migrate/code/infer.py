"""Types of expressions: annotations, results of torch calls by the table, attributes, containers, calls of the repository."""

from __future__ import annotations

import sys
from collections.abc import Callable

import libcst as cst

from migrate.code.resolve import Resolver, dotted
from migrate.code.symbols import MODULE, Facts, FunctionInfo, Symbols
from migrate.code.types import (
    DEVICE,
    DTYPE,
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

Env = dict[str, Type]

_TENSOR_ATTRIBUTES = {
    "shape": SHAPE, "dtype": DTYPE, "device": DEVICE, "ndim": NUMBER, "is_cuda": NUMBER, "requires_grad": NUMBER,
    "data": TENSOR, "grad": TENSOR, "T": TENSOR, "mT": TENSOR, "H": TENSOR, "real": TENSOR, "imag": TENSOR,
}  # fmt: skip
_TENSOR_METHODS = {
    "size": SHAPE, "item": NUMBER, "tolist": VALUE, "numpy": VALUE, "dim": NUMBER, "numel": NUMBER, "nelement": NUMBER,
    "element_size": NUMBER, "stride": SHAPE, "is_contiguous": NUMBER, "get_device": NUMBER, "backward": NONE,
    "chunk": list_of(TENSOR), "split": list_of(TENSOR), "unbind": list_of(TENSOR), "tensor_split": list_of(TENSOR),
}  # fmt: skip
_SAME_ELEMENTS = {"builtins.list", "builtins.tuple", "builtins.iter", "builtins.sorted", "builtins.reversed", "builtins.set",
                  "itertools.cycle", "itertools.islice", "tqdm.tqdm", "tqdm.auto.tqdm", "copy.copy", "copy.deepcopy"}  # fmt: skip
_COPIES = {"copy.copy", "copy.deepcopy"}
_KNOWN_RESULTS = {"torch.nn.Parameter": PARAMETER, "torch.device": DEVICE, "torch.cuda.is_available": NUMBER}
_MULTIPLE_RESULTS = {"torch.nn.LSTM", "torch.nn.GRU", "torch.nn.RNN", "torch.nn.MultiheadAttention"}
_CONTAINERS = {"torch.nn.ModuleList", "torch.nn.Sequential", "torch.nn.ModuleDict", "torch.nn.ParameterList"}
_LIST_ANNOTATIONS = {"builtins.list", "typing.List", "typing.Sequence", "typing.Iterable", "typing.Iterator",
                     "collections.abc.Sequence", "collections.abc.Iterable", "collections.abc.Iterator"}  # fmt: skip
_TUPLE_ANNOTATIONS = {"builtins.tuple", "typing.Tuple"}
_DICT_ANNOTATIONS = {"builtins.dict", "typing.Dict", "typing.Mapping", "collections.abc.Mapping"}
_NUMBER_ANNOTATIONS = {"builtins.int", "builtins.float", "builtins.bool", "builtins.complex"}
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
_ANY_ANNOTATIONS = {"typing.Any", "builtins.object"}


class Inference:
    """Evaluates expressions of one file in an environment of local variables; call sites feed `facts`."""

    def __init__(self, symbols: Symbols, facts: Facts, resolver: Resolver, record: Callable[[cst.CSTNode, Type], None]):
        self.symbols, self.facts, self.resolver, self._record = symbols, facts, resolver, record
        self.owner: str | None = None
        """Qualified name of the class whose method is being evaluated, for `super()`."""

    # -- annotations
    def annotation(self, node: cst.BaseExpression | None) -> Type | None:
        """The type an annotation states; None if it states nothing."""
        if node is None:
            return None
        if isinstance(node, cst.SimpleString | cst.ConcatenatedString):
            try:
                # The names of a quoted annotation have no scope; only plain torch names are understood.
                text = str(node.evaluated_value)
            except ValueError:
                return None
            return TENSOR if text in ("torch.Tensor", "Tensor") else None
        if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.BitOr):
            return join(self.annotation(node.left), self.annotation(node.right))
        if isinstance(node, cst.Subscript):
            return self._subscripted_annotation(node)
        if isinstance(node, cst.Name) and node.value == "None":
            return NONE
        name = self.resolver.qualified(node)
        if name is None or name in _ANY_ANNOTATIONS:
            return None
        if name in _NUMBER_ANNOTATIONS:
            return NUMBER
        if name in ("torch.Tensor", "torch.FloatTensor", "torch.LongTensor", "torch.BoolTensor"):
            return TENSOR
        if name == "torch.nn.Parameter":
            return PARAMETER
        if name in ("torch.dtype", "torch.device", "torch.Size"):
            return {"dtype": DTYPE, "device": DEVICE, "Size": SHAPE}[name.rpartition(".")[2]]
        if name in self.symbols.classes or name.startswith("torch."):
            return instance(name)
        return VALUE if name in (*_LIST_ANNOTATIONS, *_DICT_ANNOTATIONS, *_TUPLE_ANNOTATIONS) else Type("value", name)

    def _subscripted_annotation(self, node: cst.Subscript) -> Type | None:
        name = self.resolver.qualified(node.value)
        inner = [self.annotation(e.slice.value) for e in node.slice if isinstance(e.slice, cst.Index)]
        if name in ("typing.Optional", "typing.Union"):
            return join_known([t for t in inner if t is not None]) if None not in inner else None
        if name in _LIST_ANNOTATIONS and inner:
            return list_of(inner[0] or UNKNOWN)
        if name in _DICT_ANNOTATIONS and len(inner) == 2:
            return Type("dict", items=(inner[1] or UNKNOWN,))
        if name in _TUPLE_ANNOTATIONS and inner:
            second = node.slice[-1].slice
            if isinstance(second, cst.Index) and isinstance(second.value, cst.Ellipsis):
                return list_of(inner[0] or UNKNOWN)
            return tuple_of(*[t or UNKNOWN for t in inner])
        return None

    # -- expressions
    def type_of(self, node: cst.BaseExpression, env: Env) -> Type:
        """Type of an expression; records it, and those of its parts, for the passes."""
        method = getattr(self, f"_{type(node).__name__.lower()}", None)
        found: Type = method(node, env) if method else self._other(node, env)
        self._record(node, found)
        return found

    def _other(self, node: cst.CSTNode, env: Env) -> Type:
        for child in node.children:
            if isinstance(child, cst.BaseExpression):
                self.type_of(child, env)
            else:
                self._other(child, env)
        return UNKNOWN

    def _integer(self, node: cst.Integer, env: Env) -> Type:
        return NUMBER

    _float = _integer

    def _simplestring(self, node: cst.SimpleString, env: Env) -> Type:
        return VALUE

    _concatenatedstring = _simplestring

    def _formattedstring(self, node: cst.FormattedString, env: Env) -> Type:
        self._other(node, env)
        return VALUE

    def _name(self, node: cst.Name, env: Env) -> Type:
        if node.value in env:
            return env[node.value]
        if node.value == "None":
            return NONE
        if node.value in ("True", "False"):
            return NUMBER
        return self._named(self.resolver.qualified(node))

    def _named(self, name: str | None) -> Type:
        if name is None:
            return UNKNOWN
        if name in self.symbols.classes:
            return Type("class", name)
        if name in self.symbols.functions:
            return Type("function", name)
        if name in self.facts.variables:
            return self.facts.variables[name]
        if name.startswith("torch."):
            rows = self.symbols.table.rows(name)
            if rows and rows[0].signature is None and rows[0].returns:
                return from_returns(rows[0].returns, name)
            return Type("torch", name)
        if name.startswith("builtins.") or "." not in name:
            return Type("function", name)
        return Type("external", name)

    def _attribute(self, node: cst.Attribute, env: Env) -> Type:
        name = self.resolver.qualified(node)
        if name is not None and not (isinstance(node.value, cst.Name) and node.value.value in env):
            known = self._named(name)
            if known.kind not in ("external", "unknown") or dotted(node) is None:
                return known
        base = self.type_of(node.value, env)
        return self.member(base, node.attr.value) or (self._named(name) if name else UNKNOWN)

    def member(self, base: Type, attribute: str) -> Type | None:
        """Type of `object.attribute`; None when nothing is known."""
        if base.is_tensor:
            return _TENSOR_ATTRIBUTES.get(attribute, UNKNOWN)
        if base.kind in ("object", "class", "super"):
            for name in self.symbols.lineage(base.name)[1 if base.kind == "super" else 0 :]:
                info = self.symbols.classes.get(name)
                if info and attribute in info.methods:
                    method = info.methods[attribute]
                    return (
                        self.facts.returns.get(method.name, PENDING)
                        if method.is_property
                        else Type("method", method.name)
                    )
                if (name, attribute) in self.facts.attributes:
                    return self.facts.attributes[name, attribute]
                if info and attribute in info.fields:
                    return self.annotation_in(info.resolver, info.fields[attribute].annotation) or UNKNOWN
            if base.kind == "object" and attribute in ("weight", "bias") and not self.symbols.classes.get(base.name):
                return PARAMETER
            if attribute == "param_groups":
                return list_of(Type("dict", items=(UNKNOWN,)))
            if base.name in self.symbols.classes and all(
                n in self.symbols.classes for n in self.symbols.lineage(base.name)
            ):
                return PENDING
        if base.kind == "pending":
            return PENDING
        if base.kind == "tuple" and attribute in ("values", "indices") and base.items and base.items[0].is_tensor:
            return TENSOR
        if base.kind in ("number", "value", "shape", "dtype", "device"):
            return VALUE
        return None

    def annotation_in(self, resolver: Resolver, node: cst.BaseExpression) -> Type | None:
        """An annotation of another file, read with that file's names."""
        return Inference(self.symbols, self.facts, resolver, self._record).annotation(node)

    def _subscript(self, node: cst.Subscript, env: Env) -> Type:
        base = self.type_of(node.value, env)
        for element in node.slice:
            self._other(element, env)
        index = node.slice[0].slice
        sliced = isinstance(index, cst.Slice)
        if base.kind in ("tensor", "parameter"):
            return TENSOR
        if base.kind == "shape":
            return SHAPE if sliced else NUMBER
        if base.kind == "tuple" and len(node.slice) == 1:
            position = _constant_index(index)
            if position is not None and -len(base.items) <= position < len(base.items):
                return base.items[position]
            return base.element if not sliced else list_of(base.element)
        if base.kind in ("value", "number"):
            return VALUE
        return base if sliced else base.element

    def _tuple(self, node: cst.Tuple, env: Env) -> Type:
        found = [self.type_of(e.value, env) for e in node.elements]
        if any(isinstance(e, cst.StarredElement) for e in node.elements):
            return list_of(join_all(tuple(found)))
        return tuple_of(*found)

    def _list(self, node: cst.List, env: Env) -> Type:
        found = [
            self.type_of(e.value, env).element if isinstance(e, cst.StarredElement) else self.type_of(e.value, env)
            for e in node.elements
        ]
        return Type("list", items=(join_all(tuple(found)),) if found else ())

    _set = _list

    def _dict(self, node: cst.Dict, env: Env) -> Type:
        found: list[Type] = []
        for element in node.elements:
            if isinstance(element, cst.DictElement):
                self.type_of(element.key, env)
                found.append(self.type_of(element.value, env))
            else:
                found.append(self.type_of(element.value, env).element)
        return Type("dict", items=(join_all(tuple(found)),) if found else ())

    def _listcomp(self, node: cst.ListComp, env: Env) -> Type:
        return list_of(self.type_of(node.elt, self._comprehension(node.for_in, env)))

    _setcomp = _generatorexp = _listcomp

    def _dictcomp(self, node: cst.DictComp, env: Env) -> Type:
        inner = self._comprehension(node.for_in, env)
        self.type_of(node.key, inner)
        return Type("dict", items=(self.type_of(node.value, inner),))

    def _comprehension(self, clause: cst.CompFor, env: Env) -> Env:
        inner = dict(env)
        bind_target(clause.target, self.type_of(clause.iter, inner).element, inner)
        for condition in clause.ifs:
            self.type_of(condition.test, inner)
        return self._comprehension(clause.inner_for_in, inner) if clause.inner_for_in else inner

    def _lambda(self, node: cst.Lambda, env: Env) -> Type:
        inner = {**env, **{p.name.value: UNKNOWN for p in node.params.params}}
        self.type_of(node.body, inner)
        return UNKNOWN

    def _binaryoperation(self, node: cst.BinaryOperation, env: Env) -> Type:
        left, right = self.type_of(node.left, env), self.type_of(node.right, env)
        if left.is_tensor or right.is_tensor:
            return TENSOR
        if "pending" in (left.kind, right.kind):
            return PENDING
        if left.kind == right.kind == "number":
            return NUMBER
        if left.kind in ("list", "tuple"):
            return join(left, right) or left if isinstance(node.operator, cst.Add) else left
        if "unknown" in (left.kind, right.kind):
            return UNKNOWN
        return VALUE

    def _unaryoperation(self, node: cst.UnaryOperation, env: Env) -> Type:
        inner = self.type_of(node.expression, env)
        return NUMBER if isinstance(node.operator, cst.Not) else inner

    def _booleanoperation(self, node: cst.BooleanOperation, env: Env) -> Type:
        return join(self.type_of(node.left, env), self.type_of(node.right, env)) or UNKNOWN

    def _comparison(self, node: cst.Comparison, env: Env) -> Type:
        found = [self.type_of(node.left, env)] + [self.type_of(c.comparator, env) for c in node.comparisons]
        identity = (cst.Is, cst.IsNot, cst.In, cst.NotIn)
        if any(isinstance(c.operator, identity) for c in node.comparisons):
            return NUMBER
        if any(t.is_tensor for t in found):
            return TENSOR
        if any(t.kind == "pending" for t in found):
            return PENDING
        return UNKNOWN if any(t.kind == "unknown" for t in found) else NUMBER

    def _ifexp(self, node: cst.IfExp, env: Env) -> Type:
        self.type_of(node.test, env)
        return join(self.type_of(node.body, env), self.type_of(node.orelse, env)) or UNKNOWN

    def _namedexpr(self, node: cst.NamedExpr, env: Env) -> Type:
        found = self.type_of(node.value, env)
        bind_target(node.target, found, env)
        return found

    # -- calls
    def _call(self, node: cst.Call, env: Env) -> Type:
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
            return self._object_call(function, arguments)
        if isinstance(node.func, cst.Attribute):
            return self._method_call(node.func, arguments, env)
        return PENDING if function.kind == "pending" else UNKNOWN

    def _torch_call(self, name: str, arguments: list[tuple[cst.Arg, Type]]) -> Type:
        if name in _CONTAINERS:
            found = [t if name == "torch.nn.Sequential" and len(arguments) > 1 else t.element for _, t in arguments]
            return instance(name, join_known([t for t in found if t.is_known]))
        parent, _, last = name.rpartition(".")
        if parent.startswith("torch.nn.functional"):
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

    def _user_call(self, function: FunctionInfo, arguments: list[tuple[cst.Arg, Type]]) -> Type:
        self.pass_arguments(function, arguments)
        stated = (
            self.annotation_in(function.resolver, function.node.returns.annotation) if function.node.returns else None
        )
        return stated or self.facts.returns.get(function.name, PENDING)

    def pass_arguments(self, function: FunctionInfo, arguments: list[tuple[cst.Arg, Type]]) -> None:
        """Tell a function what it is called with."""
        position = 0
        names = {p.name.value for p in function.parameters}
        keyword_only = {p.name.value for p in function.node.params.kwonly_params}
        positional = [p.name.value for p in function.parameters if p.name.value not in keyword_only]
        for argument, found in arguments:
            if argument.star:
                return
            if argument.keyword is not None:
                if argument.keyword.value in names:
                    self.facts.note_parameter(function.name, argument.keyword.value, found)
            elif position < len(positional):
                self.facts.note_parameter(function.name, positional[position], found)
                position += 1

    def _object_call(self, target: Type, arguments: list[tuple[cst.Arg, Type]]) -> Type:
        method = self.symbols.method(target.name, "forward") if self.symbols.is_module(target.name) else None
        method = method or self.symbols.method(target.name, "__call__")
        if method:
            return self._user_call(method, arguments)
        if self.symbols.is_module(target.name):
            if target.name in _MULTIPLE_RESULTS:
                return tuple_of(TENSOR, UNKNOWN)
            return UNKNOWN if target.name == MODULE or target.name in self.symbols.classes else TENSOR
        return UNKNOWN

    def _method_call(self, function: cst.Attribute, arguments: list[tuple[cst.Arg, Type]], env: Env) -> Type:
        base = self.type_of(function.value, env)
        method = function.attr.value
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
            return self._object_method(base, method)
        if base.kind in ("list", "dict"):
            return self._container_method(base, method, [t for _, t in arguments], function.value, env)
        if base.kind in ("value", "number"):
            return VALUE
        return PENDING if base.kind == "pending" else UNKNOWN

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

    def _library_call(self, name: str, node: cst.Call, arguments: list[tuple[cst.Arg, Type]], env: Env) -> Type | None:
        types = [t for _, t in arguments]
        first = types[0] if types else UNKNOWN
        if name in _SAME_ELEMENTS:
            return first if name in _COPIES else list_of(self.iterated(first)) if types else Type("list")
        if name == "builtins.next":
            return self.iterated(first)
        if name == "builtins.enumerate":
            return list_of(tuple_of(NUMBER, self.iterated(first)))
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
        if name == "builtins.vars":
            return UNKNOWN
        if name.startswith("builtins."):
            return NUMBER if name in ("builtins.len", "builtins.int", "builtins.float", "builtins.abs") else VALUE
        if name.split(".")[0] in _PLAIN_LIBRARIES:
            return VALUE
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


def bind_target(target: cst.CSTNode, found: Type, env: Env) -> None:
    """Assign a type to the plain names of an assignment target, unpacking tuples."""
    if isinstance(target, cst.Name):
        env[target.value] = found
    elif isinstance(target, cst.Tuple | cst.List):
        stars = any(isinstance(e, cst.StarredElement) for e in target.elements)
        exact = found.kind == "tuple" and len(found.items) == len(target.elements) and not stars
        for position, element in enumerate(target.elements):
            inner = found.items[position] if exact else found.element
            bind_target(element.value, list_of(inner) if isinstance(element, cst.StarredElement) else inner, env)


def _constant_index(node: cst.CSTNode) -> int | None:
    if isinstance(node, cst.Index):
        value = node.value
        if isinstance(value, cst.Integer):
            return value.evaluated_value
        if (
            isinstance(value, cst.UnaryOperation)
            and isinstance(value.operator, cst.Minus)
            and isinstance(value.expression, cst.Integer)
        ):
            return -value.expression.evaluated_value
    return None
