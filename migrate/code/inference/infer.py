"""Types of expressions: literals, names, attributes, operators, containers; calls are in `infer_calls`."""

from __future__ import annotations

from collections.abc import Callable

import libcst as cst

from migrate.code.inference.annotations import Annotations
from migrate.code.inference.infer_calls import CallInference, Env
from migrate.code.inference.library_types import attribute_type, is_output
from migrate.code.inference.types import (
    DEVICE,
    DTYPE,
    NONE,
    NUMBER,
    PARAMETER,
    PENDING,
    SHAPE,
    TENSOR,
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
from migrate.code.names.symbols import MODULE, Facts, Symbols
from migrate.code.trees.dotted import dotted

_TENSOR_ATTRIBUTES = {
    "shape": SHAPE, "dtype": DTYPE, "device": DEVICE, "ndim": NUMBER, "is_cuda": NUMBER, "requires_grad": NUMBER,
    "data": TENSOR, "grad": TENSOR, "T": TENSOR, "mT": TENSOR, "H": TENSOR, "real": TENSOR, "imag": TENSOR,
}  # fmt: skip
_TENSOR_CLASSES = ("torch.Tensor", "mindspore.Tensor")


class Inference(CallInference):
    """Evaluates expressions of one file in an environment of local variables."""

    def __init__(
        self,
        symbols: Symbols,
        facts: Facts,
        resolver: Resolver,
        record: Callable[[cst.CSTNode, Type], None],
        correct: Callable[[cst.CSTNode, Type], None],
    ):
        super().__init__(symbols, facts, resolver)
        self.record, self.correct = record, correct

    def type_of(self, node: cst.BaseExpression, env: Env) -> Type:
        """Type of an expression; records it, and those of its parts, for the passes."""
        method = getattr(self, f"_{type(node).__name__.lower()}", None)
        found: Type = method(node, env) if method else self.parts(node, env)
        self.record(node, found)
        return found

    def show(self, node: cst.BaseExpression, found: Type, env: Env) -> None:
        self.correct(node, found)
        if isinstance(node, cst.Name) and node.value in env:
            env[node.value] = found

    def parts(self, node: cst.CSTNode, env: Env) -> Type:
        for child in node.children:
            if isinstance(child, cst.BaseExpression):
                self.type_of(child, env)
            else:
                self.parts(child, env)
        return UNKNOWN

    def _integer(self, node: cst.Integer, env: Env) -> Type:
        return NUMBER

    _float = _integer

    def _simplestring(self, node: cst.SimpleString, env: Env) -> Type:
        return VALUE

    _concatenatedstring = _simplestring

    def _formattedstring(self, node: cst.FormattedString, env: Env) -> Type:
        self.parts(node, env)
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
        if len(base.alternatives) > 1:
            found = [self.member(one, attribute) for one in base.alternatives]
            return None if None in found else join_all(tuple(t for t in found if t is not None))
        if base.is_tensor or base.kind == "tensors":
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
                    return Annotations(self.symbols, info.resolver).read(info.fields[attribute].annotation) or UNKNOWN
            layers = (
                name for name in self.symbols.lineage(base.name) if name.startswith("torch.nn.") and name != MODULE
            )
            if base.kind == "object" and attribute in ("weight", "bias") and any(layers):
                return PARAMETER
            if attribute == "param_groups":
                return list_of(Type("dict", items=(UNKNOWN,)))
            if (inherited := attribute_type(self.symbols, base.name, attribute)) is not None:
                return inherited
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

    def _subscript(self, node: cst.Subscript, env: Env) -> Type:
        base = self.type_of(node.value, env)
        for element in node.slice:
            self.parts(element, env)
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
        if is_output(self.symbols, base):
            return self._output_element(base, index)
        return base if sliced else base.element

    def _output_element(self, base: Type, index: cst.BaseSlice) -> Type:
        """`outputs["logits"]`, `outputs[0]`, `outputs[1:]`."""
        if not isinstance(index, cst.Index):
            return list_of(UNKNOWN)
        if isinstance(index.value, cst.SimpleString):
            return self.member(base, str(index.value.evaluated_value)) or UNKNOWN
        return TENSOR if _constant_index(index) == 0 else UNKNOWN

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
        left = self.type_of(node.left, env)
        taken, other = self.narrowed(node.left, env)
        right = self.type_of(node.right, taken if isinstance(node.operator, cst.And) else other)
        return join(left, right) or UNKNOWN

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
        taken, other = self.narrowed(node.test, env)
        return join(self.type_of(node.body, taken), self.type_of(node.orelse, other)) or UNKNOWN

    def narrowed(self, test: cst.BaseExpression, env: Env) -> tuple[Env, Env]:
        """The environments in which a condition holds and in which it does not: `isinstance(x, torch.Tensor)`.

        A condition that says nothing gives `env` itself twice.
        """
        if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
            other, taken = self.narrowed(test.expression, env)
            return taken, other
        if isinstance(test, cst.BooleanOperation) and isinstance(test.operator, cst.And):
            taken, _ = self.narrowed(test.left, env)
            return self.narrowed(test.right, taken)[0], env
        if isinstance(test, cst.Call) and test.args and isinstance(test.args[0].value, cst.Name):
            question = self.resolver.qualified(test.func)
            found = TENSOR if question == "torch.is_tensor" else None
            if question == "builtins.isinstance" and len(test.args) == 2:
                found = self._class_asked(test.args[1].value)
            if found is not None:
                return {**env, test.args[0].value.value: found}, env
        return env, env

    def _class_asked(self, node: cst.BaseExpression) -> Type | None:
        """What an object is that `isinstance` says yes to, for tensors, modules and classes of the repository."""
        if isinstance(node, cst.Tuple):
            kinds = [self._class_asked(element.value) for element in node.elements]
            return None if None in kinds else join_known([kind for kind in kinds if kind is not None])
        name = self.resolver.qualified(node)
        if name in _TENSOR_CLASSES:
            return TENSOR
        known = name is not None and (name in self.symbols.classes or self.symbols.is_module(name))
        return instance(name) if name is not None and known else None

    def _namedexpr(self, node: cst.NamedExpr, env: Env) -> Type:
        found = self.type_of(node.value, env)
        bind_target(node.target, found, env)
        return found

    def _call(self, node: cst.Call, env: Env) -> Type:
        return self.call(node, env)


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
