"""Follows the flow of tensors through the methods of a module, with some of its layers cut."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from migrate.code.context import code_of
from migrate.code.shard.follower import Frame
from migrate.code.shard.keeping import Keeping
from migrate.code.shard.layers import Inventory
from migrate.code.shard.record import Record
from migrate.code.shard.sizes import Size, named
from migrate.code.shard.values import (
    NONE,
    AxesError,
    Callable,
    Constant,
    Instance,
    Items,
    Kept,
    LayerRef,
    Number,
    Opaque,
    Tensor,
    UnprovedError,
    Value,
    is_cut,
    joined,
    tensors_in,
)

MAX_RUNS = 6
"""Of one method: each may find that another attribute keeps cut tensors."""
Env = dict[str, Value]


def follow(
    inventory: Inventory, class_name: str, cuts: dict[LayerRef, str], entered: frozenset[str] = frozenset()
) -> Record:
    """What `forward` of a class does to its tensors.

    Args:
        inventory: the classes of the repository.
        class_name: the class.
        cuts: `column` or `row` by layer; all others are whole.
        entered: parameters of the method (`param:x`) that pass EnterParallel at its beginning.

    Raises:
        UnprovedError: it is not proved that every rank gets what one process would.
    """
    kept: dict[tuple[str, str], Tensor | Kept] = {}
    three: frozenset[str] = frozenset()
    for turn in range(MAX_RUNS):
        flow = _Flow(inventory, cuts, entered, kept)
        flow.lenient = turn == 0
        try:
            flow.root(class_name, three)
        except AxesError:
            read = frozenset(origin.removeprefix("param:") for origin in flow.record.column_inputs)
            if not read or three:
                raise
            three = read
        except UnprovedError:
            if flow.kept_now == kept:
                raise  # otherwise what attributes keep was not known when they were read
        else:
            if flow.kept_now == kept and not flow.lenient:
                flow.record.check()
                return flow.record
        kept = {**kept, **flow.kept_now}
    raise UnprovedError("what attributes keep does not settle")


class _Flow(Keeping):
    """Statements in order."""

    def root(self, class_name: str, three: frozenset[str]) -> None:
        """Follows `forward`; the parameters `three` are taken to be `[batch, sequence, features]`."""
        forward = self.symbols.method(class_name, "forward")
        assert forward is not None
        arguments: Env = {}
        for parameter in forward.parameters:
            name = parameter.name.value
            found = self.facts.parameters.get((forward.name, name))
            if found is not None and found.kind == "object" and found.name in self.symbols.classes:
                arguments[name] = Instance(found.name)
            else:
                shape: tuple[Size, ...] = (Size((f"*{name}",), rest=True), named(f"{name}.-1"))
                if name in three:
                    shape = (named(f"*{name}.0"), named(f"*{name}.1"), shape[-1])
                    self.record.notes.append(f"{name} is taken to have the axes batch, sequence and features")
                arguments[name] = Tensor(shape, frozenset({f"param:{name}"}), exact=name)
        result = self.run(Callable(forward, Instance(class_name, is_root=True)), arguments)
        main, *others = result.items if isinstance(result, Items) and result.items else [result]
        if is_cut(main):
            raise UnprovedError("the result is cut")
        if any(is_cut(other) for other in others):
            self.record.notes.append("results besides the first are this rank's heads only")
        for tensor in tensors_in(result):
            if not tensor.is_cut:
                self.escape(tensor)

    def run(self, function: Callable, arguments: Env) -> Value:
        info, receiver = function.info, function.receiver
        env: Env = {}
        parameters = info.node.params
        if receiver is not None:
            first = [*parameters.posonly_params, *parameters.params][:1]
            env.update({p.name.value: receiver for p in first if info.owner is not None})
        for parameter in info.parameters:
            name = parameter.name.value
            if name in arguments:
                env[name] = arguments[name]
            elif parameter.default is not None:
                env[name] = self._default(parameter.default)
            else:
                env[name] = Opaque()
        for star in (parameters.star_arg, parameters.star_kwarg):
            if isinstance(star, cst.Param):
                env[star.name.value] = Opaque()
        is_root = receiver is not None and receiver.is_root
        before = getattr(self, "frame", None)
        self.frame = Frame(info.name, info.resolver, info.owner.name if info.owner else None, is_root, env)
        self.depth += 1
        self.record.followed.add(info.name)
        try:
            self._block(info.node.body.body)
            return self._result(self.frame.returned)
        finally:
            self.depth -= 1
            if before is not None:
                self.frame = before

    def _default(self, node: cst.BaseExpression) -> Value:
        if isinstance(node, cst.Name) and node.value in ("None", "True", "False"):
            return Constant({"None": None, "True": True, "False": False}[node.value])
        return Number(named(node.value)) if isinstance(node, cst.Integer) else Opaque()

    def _result(self, returned: Sequence[Value]) -> Value:
        found: Value | None = None
        for value in returned:
            found = joined(found, value)
        return found or NONE

    # -- statements
    def _block(self, statements: Sequence[cst.CSTNode]) -> bool:
        """Follows statements; whether the block is certainly left before its end."""
        return any(self._statement(statement) for statement in statements)

    def _statement(self, node: cst.CSTNode) -> bool:
        match node:
            case cst.SimpleStatementLine() | cst.SimpleStatementSuite():
                return self._block(node.body)
            case cst.Return():
                self.frame.returned.append(NONE if node.value is None else self.value(node.value))
                return True
            case cst.Raise() | cst.Continue() | cst.Break():
                return True
            case cst.Assign():
                value = self.value(node.value)
                for target in node.targets:
                    self._assign(target.target, value)
            case cst.AnnAssign():
                if node.value is not None:
                    self._assign(node.target, self.value(node.value))
            case cst.AugAssign():
                self._augmented(node)
            case cst.Expr():
                self.value(node.value)
            case cst.Assert():
                self.value(node.test)
            case cst.If():
                return self._if(node)
            case cst.For() | cst.While():
                self._loop(node)
            case cst.With():
                return self._block(node.body.body)
            case cst.FunctionDef() | cst.ClassDef():
                self.frame.env[node.name.value] = Opaque()
            case cst.Pass() | cst.Import() | cst.ImportFrom():
                pass
            case _:
                raise UnprovedError(f"a statement of the kind {type(node).__name__} is not followed", node)
        return False

    def _augmented(self, node: cst.AugAssign) -> None:
        left, right = self.value(node.target), self.value(node.value)
        if isinstance(left, Tensor) or isinstance(right, Tensor):
            self._assign(node.target, self.combined([(left, node.target), (right, node.value)]))
        else:
            self._assign(node.target, self.mixed([left, right], code_of(node.target)))

    def _if(self, node: cst.If) -> bool:
        decided = self.test(node.test)
        if decided is True:
            return self._block(node.body.body)
        if decided is False:
            return False if node.orelse is None else self._orelse(node.orelse)
        before = dict(self.frame.env)
        left = self._block(node.body.body)
        taken, self.frame.env = self.frame.env, before
        other_left = False
        if node.orelse is not None:
            other_left = self._orelse(node.orelse)
        if left and other_left:
            return True
        if other_left:
            self.frame.env = taken
        elif not left:
            names = {*taken, *self.frame.env}
            self.frame.env = {n: joined(taken.get(n), self.frame.env.get(n)) for n in names}
        return False

    def _orelse(self, node: cst.If | cst.Else) -> bool:
        return self._if(node) if isinstance(node, cst.If) else self._block(node.body.body)

    def _loop(self, node: cst.For | cst.While) -> None:
        for _ in range(2):
            before = dict(self.frame.env)
            if isinstance(node, cst.For):
                self._assign(node.target, self._iterated(self.value(node.iter)))
            else:
                self.test(node.test)
            self._block(node.body.body)
            names = {*before, *self.frame.env}
            self.frame.env = {n: joined(before.get(n), self.frame.env.get(n)) for n in names}

    def _iterated(self, value: Value) -> Value:
        if isinstance(value, Items):
            return self._result(value.items)
        if is_cut(value):
            raise UnprovedError("a loop over a cut tensor")
        return Tensor(None, value.origins, None, value.layers) if isinstance(value, Tensor) else Opaque()

    # -- targets
    def _assign(self, target: cst.BaseExpression, value: Value) -> None:
        match target:
            case cst.Name():
                self.frame.env[target.value] = value
            case cst.Tuple() | cst.List():
                self._unpack(target, value)
            case cst.Attribute():
                owner = self.value(target.value)
                if isinstance(owner, Instance):
                    self.keep(owner, target.attr.value, value, target)
                elif is_cut(value):
                    raise UnprovedError(f"{code_of(target)} keeps a cut tensor", target)
            case cst.Subscript():
                self._assign_element(target, value)

    def _unpack(self, target: cst.Tuple | cst.List, value: Value) -> None:
        elements = list(target.elements)
        if isinstance(value, Items) and not any(isinstance(e, cst.StarredElement) for e in elements):
            value = self._spread(value, len(elements))
            if len(value.items) == len(elements):
                for element, item in zip(elements, value.items, strict=True):
                    self._assign(element.value, item)
                return
        if is_cut(value):
            raise UnprovedError("a cut tensor or its shape is unpacked into another number of names")
        for element in elements:
            tensors = tensors_in(value)
            found = Tensor(None, tensors[0].origins, None, tensors[0].layers) if tensors else Opaque()
            self._assign(element.value, found)

    def _spread(self, value: Items, count: int) -> Items:
        """A shape with unknown leading axes that is unpacked into `count` names has as many."""
        place = next((i for i, v in enumerate(value.items) if isinstance(v, Number) and v.size.rest), None)
        if place is None or count < len(value.items) - 1:
            return value
        rest = value.items[place]
        assert isinstance(rest, Number)
        axes = self.spread(rest.size, count - len(value.items) + 1)
        return Items((*value.items[:place], *(Number(size) for size in axes), *value.items[place + 1 :]))

    def _assign_element(self, target: cst.Subscript, value: Value) -> None:
        base = target.value
        if isinstance(base, cst.Attribute):
            owner = self.value(base.value)
            if isinstance(owner, Instance):
                self.keep(owner, base.attr.value, value, base, element=True)
                return
        kept = self.value(base)
        if isinstance(kept, Tensor) and kept.kept_as is not None:
            self.keep(Instance(kept.kept_as[0]), kept.kept_as[1], value, base, element=True)
            if isinstance(base, cst.Name) and is_cut(value):
                self.frame.env[base.value] = self.kept_now[kept.kept_as]
            return
        if is_cut(value) and not is_cut(kept):
            raise UnprovedError(f"{code_of(target)} keeps a cut tensor", target)


__all__ = ["follow"]
