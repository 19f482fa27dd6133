"""Values of expressions while the flow of a method is followed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

import libcst as cst

from migrate.code.context import code_of
from migrate.code.resolve import Resolver
from migrate.code.shard import operations as ops
from migrate.code.shard.layers import ClassLayers, Inventory
from migrate.code.shard.record import Record, Term
from migrate.code.shard.sizes import INFERRED, Size, named, product, quotient, unknown
from migrate.code.shard.values import (
    NONE,
    Callable,
    Closure,
    Constant,
    Instance,
    Items,
    Kept,
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
    joined,
    size_of,
    tensors_in,
)


@dataclass
class Frame:
    """A function that is being followed."""

    name: str
    resolver: Resolver
    owner: str | None
    is_root: bool
    env: dict[str, Value]
    fallback: ClassLayers | None = None
    """For an expression of a constructor: whose local variables names may mean."""
    returned: list[Value] = field(default_factory=list)


class Expressions(ABC):
    """Evaluates expressions; calls are in `calls`."""

    def __init__(self, inventory: Inventory, cuts: dict[LayerRef, str], entered: frozenset[str]) -> None:
        self.inventory, self.cuts, self.entered = inventory, cuts, entered
        self.symbols, self.facts = inventory.analysis.symbols, inventory.analysis.facts
        self.record = Record()
        self.frame: Frame
        self.expansions: dict[str, tuple[Size, ...]] = {}
        """What the unknown leading axes of a tensor turned out to be."""
        self.terms: dict[int, Term] = {}
        """Where numbers stand, by identity of the value."""
        self._alive: list[Number] = []
        self._reads: dict[int, cst.BaseExpression] = {}

    @abstractmethod
    def _call(self, node: cst.Call) -> Value:
        """Value of a call."""

    @abstractmethod
    def run(self, function: Callable, arguments: dict[str, Value]) -> Value:
        """What a function of the repository returns."""

    def value(self, node: cst.BaseExpression) -> Value:
        """Value of an expression.

        Raises:
            UnprovedError: something is done with a cut value of which it is not known what comes out.
        """
        method = getattr(self, f"_{type(node).__name__.lower()}", None)
        try:
            return method(node) if method else self._other(node)
        except UnprovedError as error:
            error.node = error.node or node
            raise

    def _other(self, node: cst.CSTNode) -> Value:
        """An expression without a rule: nothing that is cut may be in it."""
        found = [self.value(child) for child in node.children if isinstance(child, cst.BaseExpression)]
        return self.mixed(found, code_of(node))

    def mixed(self, operands: Sequence[Value], what: str) -> Value:
        """The result of something unknown: it carries the layers and gradients of the operands."""
        if any(is_cut(operand) for operand in operands):
            raise UnprovedError(f"{what}: what becomes of a cut tensor here is not known")
        tensors = tensors_in(*operands)
        if not tensors:
            return Opaque()
        for tensor in tensors:
            self.escape(tensor)
        origins = frozenset({"?"}) if any(t.origins for t in tensors) else frozenset[str]()
        return Tensor(None, origins, None, frozenset().union(*(t.layers for t in tensors)))

    def escape(self, tensor: Tensor) -> None:
        """A whole tensor goes where other parameters may take part: it must not be one whose gradients are added."""
        self.record.escaped |= {origin for origin in tensor.origins if origin in self.entered}

    # -- names
    def _name(self, node: cst.Name) -> Value:
        if node.value in self.frame.env:
            return self.frame.env[node.value]
        if node.value in ("None", "True", "False"):
            return Constant({"None": None, "True": True, "False": False}[node.value])
        layers = self.frame.fallback
        if layers is not None and node.value in layers.locals:
            return self.value(layers.locals[node.value])
        return self.global_name(node) or Opaque(None if layers is None else node.value)

    def global_name(self, node: cst.Name | cst.Attribute) -> Value | None:
        """What a name of a module means."""
        name = self.frame.resolver.qualified(node)
        if name is None:
            return None
        if name in self.symbols.functions:
            return Callable(self.symbols.functions[name])
        return Torch(name)

    def _attribute(self, node: cst.Attribute) -> Value:
        root: cst.BaseExpression = node
        while isinstance(root, cst.Attribute):
            root = root.value
        if isinstance(root, cst.Name) and root.value not in self.frame.env:
            found = self.global_name(node)
            if found is not None:
                return found
        base = self.value(node.value)
        return self.member(base, node)

    def member(self, base: Value, node: cst.Attribute) -> Value:
        name = node.attr.value
        match base:
            case Instance():
                return self.attribute(base, name, node)
            case Tensor():
                if name in ("shape",):
                    return self.shape(base)
                if name == "ndim" and base.shape is not None and not self.expanded(base.shape)[0].rest:
                    return Number(named(str(len(self.expanded(base.shape)))))
                if name in ("dtype", "device", "ndim", "is_cuda", "requires_grad"):
                    return Opaque()
                if name in ("mT", "T", "H"):
                    return ops.swapped(base, -1, -2)
                if name == "data":
                    return base
                return Method(base, name, node)
            case Opaque():
                return Opaque(None if base.text is None else f"{base.text}.{name}")
        return Opaque()

    def shape(self, tensor: Tensor) -> Value:
        if tensor.shape is None:
            return Opaque()
        return Items(tuple(Number(size) for size in self.expanded(tensor.shape)))

    def expanded(self, shape: tuple[Size, ...]) -> tuple[Size, ...]:
        """A shape with the leading axes that have become known since."""
        if shape and shape[0].rest and shape[0].factors and str(shape[0].factors[0]) in self.expansions:
            return (*self.expansions[str(shape[0].factors[0])], *shape[1:])
        return shape

    def attribute(self, owner: Instance, name: str, node: cst.Attribute) -> Value:
        """An attribute of a module or another object of the repository."""
        layer = self.inventory.layer(owner.name, name)
        if layer is not None:
            return Layer(layer.ref)
        method = self.symbols.method(owner.name, name)
        if method is not None:
            bound = Callable(method, owner)
            return self.run(bound, {}) if method.is_property else bound
        kept = self.kept(owner.name, name)
        if kept is not None:
            return kept
        found = next((self.facts.attributes[n, name] for n in self.symbols.lineage(owner.name)
                      if (n, name) in self.facts.attributes), None)  # fmt: skip
        if found is not None and found.kind == "object" and found.name in self.symbols.classes:
            return Instance(found.name)
        for layers in self.inventory.lineage(owner.name):
            if name in layers.buffers:
                return Tensor(kept_as=(layers.info.name, name))
            if name in layers.definitions:
                return self.defined(layers, name, node)
        if found is not None and found.kind == "parameter":
            return Tensor(None, frozenset({"?"}))
        return Tensor(None, frozenset({"?"})) if found is not None and found.is_tensor else Opaque(f"self.{name}")

    def kept(self, owner: str, name: str) -> Value | None:
        """Tensors that the code keeps in attributes, once they are known to be cut."""
        return None

    def defined(self, layers: ClassLayers, name: str, node: cst.Attribute) -> Value:
        """What the constructor assigned to an attribute."""
        definition = layers.definitions[name]
        if isinstance(definition, cst.Call):
            called = layers.info.resolver.qualified(definition.func) or ""
            if called == "torch.nn.Parameter":
                # Read in the followed class itself it can be entered where it stands.
                self._reads[id(node)] = node
                return Tensor(None, frozenset({f"read:{id(node)}"} if self.frame.is_root else {"?"}))
            if self.symbols.is_module(called):
                return Torch(called, module=True, arguments=tuple(definition.args))
        if isinstance(definition, cst.Subscript):
            called = layers.info.resolver.qualified(definition.value) or ""
            if called.endswith("activations.ACT2FN"):
                return Torch(called, module=True)
        before, self.frame = self.frame, constructor_frame(layers)
        try:
            found = self.value(definition)
            # others may set an attribute that begins as None
            return Opaque() if found == NONE else found
        except UnprovedError:
            return Opaque(f"{layers.info.name}.{name}")
        finally:
            self.frame = before

    # -- literals and containers
    def _integer(self, node: cst.Integer) -> Value:
        return Number(named(node.value))

    def _float(self, node: cst.Float) -> Value:
        return Opaque()

    def _simplestring(self, node: cst.SimpleString) -> Value:
        return Constant(node.evaluated_value)

    def _formattedstring(self, node: cst.FormattedString) -> Value:
        return Opaque()

    def _lambda(self, node: cst.Lambda) -> Value:
        return Closure(node)

    def _listcomp(self, node: cst.ListComp | cst.GeneratorExp) -> Value:
        """Over a tuple or shape of known length the elements are computed one by one."""
        clause = node.for_in
        over = self.value(clause.iter)
        known = isinstance(over, Items) and not any(isinstance(v, Number) and v.size.rest for v in over.items)
        if not known or not isinstance(over, Items) or clause.ifs or clause.inner_for_in is not None:
            if is_cut(over):
                raise UnprovedError(f"{code_of(node)}: a comprehension over what only one rank has")
            self.bind(clause.target, Tensor(None, frozenset({"?"})))
            return self.mixed([over, self.value(node.elt)], code_of(node))
        before, found = dict(self.frame.env), []
        for item in over.items:
            self.bind(clause.target, item)
            found.append(self.value(node.elt))
        self.frame.env = before
        return Items(tuple(found))

    _generatorexp = _listcomp

    def bind(self, target: cst.BaseExpression, value: Value) -> None:
        """Gives the names of a target their values."""
        if isinstance(target, cst.Name):
            self.frame.env[target.value] = value
        elif isinstance(target, cst.Tuple | cst.List):
            exact = isinstance(value, Items) and len(value.items) == len(target.elements)
            for position, element in enumerate(target.elements):
                self.bind(element.value, value.items[position] if exact and isinstance(value, Items) else Opaque())

    def _tuple(self, node: cst.Tuple | cst.List) -> Value:
        found: list[Value] = []
        for element in node.elements:
            value = self.value(element.value)
            if isinstance(element, cst.StarredElement):
                if not isinstance(value, Items):
                    return self.mixed([value], code_of(node))
                found += value.items
            else:
                found.append(self.placed(value, element.value))
        return Items(tuple(found))

    _list = _tuple

    def placed(self, value: Value, node: cst.BaseExpression) -> Value:
        """A number remembers where it stands, so that it can be changed there."""
        if isinstance(value, (Opaque, Number)):
            number = Number(size_of(value)) if isinstance(value, Opaque) else Number(value.size)
            self.terms[id(number)] = Term(node, self.frame.name)
            self._alive.append(number)
            return number
        return value

    def _starredelement(self, node: cst.StarredElement) -> Value:
        return self.value(node.value)

    # -- operators
    def _unaryoperation(self, node: cst.UnaryOperation) -> Value:
        inner = self.value(node.expression)
        if isinstance(node.operator, cst.Minus) and isinstance(node.expression, cst.Integer):
            return Number(INFERRED) if node.expression.evaluated_value == 1 else Opaque(code_of(node))
        if isinstance(inner, Tensor):
            return inner.with_shape(inner.shape)
        return self.mixed([inner], code_of(node))

    def _binaryoperation(self, node: cst.BinaryOperation) -> Value:
        left, right = self.value(node.left), self.value(node.right)
        if isinstance(left, Tensor) or isinstance(right, Tensor):
            if isinstance(node.operator, cst.MatrixMultiply):
                return self.multiplied(left, right, (node.left, node.right))
            return self.combined([(left, node.left), (right, node.right)])
        if isinstance(left, Items) and isinstance(right, Items) and isinstance(node.operator, cst.Add):
            return Items((*left.items, *right.items))
        if isinstance(left, Constant | Items) or isinstance(right, Constant | Items):
            return self.mixed([left, right], code_of(node))
        sizes = size_of(left), size_of(right)
        if isinstance(node.operator, cst.Multiply):
            return Number(product(sizes))
        if isinstance(node.operator, cst.FloorDivide):
            return Number(quotient(*sizes))
        if any(size.cut for size in sizes):
            raise UnprovedError(f"{code_of(node)}: arithmetic with the number of features or heads of one rank")
        numbers = [_literal(Number(size)) for size in sizes]
        if isinstance(node.operator, cst.Add | cst.Subtract) and None not in numbers:
            left_number, right_number = numbers[0] or 0, numbers[1] or 0
            sign = 1 if isinstance(node.operator, cst.Add) else -1
            return Number(named(str(left_number + sign * right_number)))
        texts = ["*".join(map(str, size.factors)) for size in sizes]
        return Number(Size((f"({texts[0]} {type(node.operator).__name__} {texts[1]})",)))

    def _comparison(self, node: cst.Comparison) -> Value:
        identity = (cst.Is, cst.IsNot)
        left = self.value(node.left)
        if len(node.comparisons) == 1:
            known = _compared(left, node.comparisons[0].operator, self.value(node.comparisons[0].comparator))
            if known is not None:
                return Constant(known)
        for target in node.comparisons:
            right = self.value(target.comparator)
            if isinstance(target.operator, identity) and right == NONE:
                continue
            if is_cut(left) or is_cut(right):
                if isinstance(left, Items) and isinstance(right, Items) and len(left.items) == len(right.items):
                    self.equal_shapes(left, right)
                    continue
                raise UnprovedError(f"{code_of(node)}: a comparison with what only one rank has")
            for tensor in tensors_in(left, right):
                return Tensor(tensor.shape, frozenset())
        return Opaque()

    def equal_shapes(self, left: Items, right: Items) -> None:
        """A shape compared with numbers that state the whole lengths: there they become shares."""
        for one, other in [*zip(left.items, right.items, strict=True), *zip(right.items, left.items, strict=True)]:
            if is_cut(one) and not is_cut(other):
                term = self.terms.get(id(other))
                if term is None:
                    raise UnprovedError(
                        "the shape of a cut tensor is compared with a number that is computed elsewhere"
                    )
                self.record.shares[term.node] = term

    def _booleanoperation(self, node: cst.BooleanOperation) -> Value:
        left = self.value(node.left)
        if isinstance(left, Constant) and isinstance(left.value, bool):
            return left if left.value is isinstance(node.operator, cst.Or) else self.value(node.right)
        right = self.value(node.right)
        if isinstance(node.operator, cst.Or):
            return joined(left, right)
        return self.mixed([left, right], code_of(node))

    def _ifexp(self, node: cst.IfExp) -> Value:
        decided = self.test(node.test)
        if decided is not None:
            return self.value(node.body if decided else node.orelse)
        return joined(self.value(node.body), self.value(node.orelse))

    def test(self, node: cst.BaseExpression) -> bool | None:
        """A condition, if it is known. It must come out the same on every rank."""
        found = self.value(node)
        if is_cut(found):
            raise UnprovedError(f"{code_of(node)}: a condition on what only one rank has", node)
        return found.value if isinstance(found, Constant) and isinstance(found.value, bool) else None

    def _namedexpr(self, node: cst.NamedExpr) -> Value:
        found = self.value(node.value)
        if isinstance(node.target, cst.Name):
            self.frame.env[node.target.value] = found
        return found

    # -- elements
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
        if isinstance(base, Torch) and base.name.endswith("ACT2FN"):
            return Torch(base.name, module=True)
        return self.mixed([base], code_of(node))

    def element(self, base: Items, index: cst.BaseSlice, node: cst.BaseExpression) -> Value:
        rest = next((i for i, v in enumerate(base.items) if isinstance(v, Number) and v.size.rest), None)
        if isinstance(index, cst.Index):
            position = _number(index.value)
            if position is None:
                return joined_all(base.items)
            if rest == 0 and position >= 0 and isinstance(base.items[0], Number):
                return Number(named(f"{base.items[0].size.factors[0]}.{position}"))
            if rest is not None and (position >= 0 or position < -(len(base.items) - 1)):
                return Number(unknown())
            return base.items[position] if -len(base.items) <= position < len(base.items) else Opaque()
        assert isinstance(index, cst.Slice)
        lower = 0 if index.lower is None else _number(index.lower)
        upper = len(base.items) if index.upper is None else _number(index.upper)
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
                raise UnprovedError("a cut tensor whose number of axes is not known is indexed from the front")
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

    # -- operators on tensors
    def combined(self, operands: Sequence[tuple[Value, cst.BaseExpression]]) -> Value:
        """Elementwise with broadcasting."""
        tensors = [(value, node) for value, node in operands if isinstance(value, Tensor)]
        others = [value for value, _ in operands if not isinstance(value, Tensor)]
        if any(is_cut(value) for value in others):
            raise UnprovedError("a tensor is combined with the number of features or heads of one rank")
        if any(value.is_cut for value, _ in tensors):
            tensors = [(self.enter(value, node), node) for value, node in tensors]
        return ops.elementwise([value for value, _ in tensors])

    def enter(self, tensor: Tensor, node: cst.BaseExpression) -> Tensor:
        """A whole tensor meets a cut one: what it came from has to pass EnterParallel on the way."""
        if tensor.is_cut or not tensor.origins:
            return tensor
        for origin in tensor.origins:
            if origin.startswith("param:"):
                self.record.entering.add(origin)
            elif origin.startswith("read:"):
                read = self._reads[int(origin[5:])]
                self.record.entered[read] = read
            else:
                raise UnprovedError(
                    f"{code_of(node)} is whole, meets a cut tensor, and where its gradient goes is not known",
                    node,
                )
        return tensor

    def multiplied(self, left: Value, right: Value, nodes: tuple[cst.BaseExpression, cst.BaseExpression]) -> Value:
        if not isinstance(left, Tensor) or not isinstance(right, Tensor):
            return self.mixed([left, right], "@")
        return ops.matrix_product(left, right)


def constructor_frame(layers: ClassLayers) -> Frame:
    """For evaluating an expression of a constructor; its parameters stand for themselves."""
    assert layers.init is not None
    env: dict[str, Value] = {p.name.value: Opaque(f"{layers.info.name}:{p.name.value}") for p in layers.init.parameters}
    env["self"] = Instance(layers.info.name)
    return Frame(layers.init.name, layers.info.resolver, layers.info.name, False, env, layers)


def _literal(value: Value) -> int | None:
    """A number that is known."""
    if not isinstance(value, Number) or value.size.cut or value.size.inferred or value.size.rest:
        return None
    factors = value.size.factors
    if not factors:
        return 1
    return int(str(factors[0])) if len(factors) == 1 and str(factors[0]).isdigit() else None


def _compared(left: Value, operator: cst.BaseCompOp, right: Value) -> bool | None:
    if isinstance(operator, cst.Is | cst.IsNot) and right == NONE and isinstance(left, Constant):
        return (left.value is None) is isinstance(operator, cst.Is)
    one, other = _literal(left), _literal(right)
    if one is None or other is None:
        return None
    if isinstance(operator, cst.Equal):
        return one == other
    return one != other if isinstance(operator, cst.NotEqual) else None


def joined_all(values: Sequence[Value]) -> Value:
    found: Value | None = None
    for value in values:
        found = joined(found, value)
    return found or Opaque()


def _number(node: cst.BaseExpression) -> int | None:
    if isinstance(node, cst.Integer):
        return node.evaluated_value
    if isinstance(node, cst.UnaryOperation) and isinstance(node.operator, cst.Minus):
        inner = _number(node.expression)
        return None if inner is None else -inner
    return None


def _is_new_axis(index: cst.BaseSlice) -> bool:
    return isinstance(index, cst.Index) and isinstance(index.value, cst.Name) and index.value.value == "None"


def _axes(sizes: Sequence[Size], indices: Sequence[cst.BaseSlice], flow: Expressions) -> list[Size]:
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
