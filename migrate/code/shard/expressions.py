"""Literals, containers and operators while the flow of a method is followed."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from migrate.code.context import code_of
from migrate.code.shard import operations as ops
from migrate.code.shard.elements import Elements
from migrate.code.shard.record import Term
from migrate.code.shard.sizes import INFERRED, Size, named, product, quotient
from migrate.code.shard.values import (
    NONE,
    Closure,
    Constant,
    Items,
    Number,
    Opaque,
    Tensor,
    UnprovedError,
    Value,
    is_cut,
    joined,
    size_of,
    tensors_in,
)


class Expressions(Elements):
    """Evaluates expressions; calls are in `calls`."""

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
                self.record.enter(self._reads[int(origin[5:])], self.frame.owner)
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
