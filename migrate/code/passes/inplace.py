"""In-place tensor methods as assignments: `x.mul_(y)` -> `x = x * y`, and `assign` where it is a parameter.

MindSpore 2.10 returns the right value from `x.mul_(y)` and leaves `x` unchanged on the CPU, without an error.
`copy_` does change it, for every other holder: `x = x.copy_(x * y)` where an assignment alone would not reach them; but
of a slice it changes a copy: `x[a:b].copy_(y)` -> `x[a:b] = y`.
"""

from __future__ import annotations

from collections.abc import Callable

import libcst as cst
import libcst.matchers as m

from migrate.code.context import FileContext, code_of
from migrate.code.dataflow.aliases import AliasScan
from migrate.code.dataflow.called import called_functions
from migrate.code.dataflow.memory import VIEWS, write_into
from migrate.code.dataflow.sharing import Flows
from migrate.code.passes.base import Pass
from migrate.code.rows.template import Expansion, select
from migrate.code.trees.dotted import dotted

_OUT_OF_PLACE = {"zero_": "torch.zeros_like", "fill_": "torch.full_like"}


_PASSING_ON = frozenset(
    f"torch.nn.{name}" for name in ("Module", "Sequential", "Identity", "Dropout", "Flatten", "Unflatten")
)
"""Layers of torch that may give back what they are given, or a view of it."""
_PARTS = VIEWS - {"view", "view_as", "reshape", "reshape_as", "flatten", "ravel", "detach"}
"""Methods whose result MindSpore's `copy_` changes without the tensor that it was taken from."""


class InPlace(Pass):
    """Statements `x.op_(...)`, and in-place calls whose result is what matters."""

    enters = (cst.Expr, cst.Assign, cst.Call)

    rule = "C206"

    def __init__(self, context: FileContext) -> None:
        super().__init__(context)
        self._statements: set[cst.CSTNode] = set()
        self._values: set[cst.CSTNode] = set()
        """In-place calls on a fresh value, or assigned to the name they change: the value is enough."""
        self._aliases = AliasScan(context)
        self._flows = Flows(context)

    def enter(self, node: cst.CSTNode) -> None:
        if isinstance(node, cst.Expr) and self._method(node.value):
            self._statements.add(node.value)
            self._values.update(self._chain(node.value)[0])
        elif isinstance(node, cst.Assign) and self._method(node.value) and len(node.targets) == 1:
            assert isinstance(node.value, cst.Call) and isinstance(node.value.func, cst.Attribute)
            calls, base = self._chain(node.value)
            if code_of(node.targets[0].target) == code_of(base):
                self._values.update([node.value, *calls])
        if isinstance(node, cst.Call) and self._method(node):
            assert isinstance(node.func, cst.Attribute)
            self.context.owned.add(node.func)
            if isinstance(node.func.value, cst.Call | cst.BinaryOperation) and self._aliases.is_fresh(node.func.value):
                self._values.add(node)

    def _chain(self, node: cst.BaseExpression) -> tuple[list[cst.BaseExpression], cst.BaseExpression]:
        """The in-place calls inside `x.add_(1).clamp_(0)`, without the outermost, and the `x` that they change."""
        calls: list[cst.BaseExpression] = []
        while self._method(node):
            assert isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute)
            calls.append(node)
            node = node.func.value
        return calls[1:], node

    def _method(self, node: cst.CSTNode) -> str | None:
        """Name of the in-place tensor method that a call is, unless the table or MindSpore itself deals with it."""
        if not isinstance(node, cst.Call) or not isinstance(node.func, cst.Attribute):
            return None
        name = node.func.attr.value
        if not name.endswith("_") or name.endswith("__") or not self.context.type_of(node.func.value).is_tensor:
            return None
        rows = self.context.table.rows(f"torch.Tensor.{name}")
        if name == "requires_grad_" or (rows and all(row.status == "unsupported" for row in rows)):
            return None
        if name == "copy_" and not self._is_parameter(node.func.value) and not self._is_slice(node.func.value):
            return None  # MindSpore's own copy_ changes the tensor, unlike its other in-place methods
        return name

    def call(self, original: cst.Call, updated: cst.Call) -> cst.BaseExpression | None:
        method = self._method(original)
        if method is None or original in self._statements:
            return updated if method else None
        if original not in self._values:
            assert isinstance(original.func, cst.Attribute)
            receiver = original.func.value
            if dotted(receiver) and (not isinstance(receiver, cst.Name) or self._aliases.copies_reach(receiver)):
                return self._copied(method, original, updated, receiver) or updated
            self.context.counts.add(f"torch.Tensor.{method}", converted=False)
            self.context.report("M301", original, f"{code_of(original)} changes its tensor inside an expression")
            return updated
        return self._value(method, original, updated) or updated

    def _value(self, method: str, original: cst.Call, updated: cst.Call) -> cst.BaseExpression | None:
        """The out-of-place expression of an in-place call."""
        assert isinstance(updated.func, cst.Attribute)
        receiver, name = updated.func.value, f"torch.Tensor.{method}"
        if method == "copy_" and (source := _copied_from(updated)) is not None:
            self.context.counts.add("torch.Tensor.copy_", converted=True)
            return source
        arguments: list[cst.Arg] = list(updated.args)
        holder: cst.BaseExpression | None = receiver
        if name not in self.context.table:  # a row of an in-place method gives the value after the call
            name = name[:-1]
            if method in _OUT_OF_PLACE:
                name, arguments, holder = _OUT_OF_PLACE[method], [cst.Arg(receiver), *arguments], None
        found = select(self.context.table, name, arguments, holder, self.context.target, {})
        if isinstance(found, Expansion):
            self.context.accept(f"torch.Tensor.{method}", found)
            return found.node
        self.context.counts.add(f"torch.Tensor.{method}", converted=False)
        rows = self.context.table.rows(name)
        self.context.report("M112" if rows else "M110", original, f"tensor method {method}: {found.reason}")
        return None

    def _copied(
        self, method: str, original: cst.Call, updated: cst.Call, receiver: cst.BaseExpression
    ) -> cst.Call | None:
        """`x.copy_(value)`: the one in-place method that changes the tensor itself, which others may hold as well."""
        value = self._value(method, original, updated)
        if value is None:
            return None
        if isinstance(receiver, cst.Name) and self._aliases.is_parameter(receiver):
            message = f"{code_of(original)} changes the tensor of the caller, unless it is a slice or transposed"
            self.context.report("M303", original, message)
        if m.matches(value, m.Call(func=m.Attribute(attr=m.Name("copy_")))):
            assert isinstance(value, cst.Call)
            return value
        return cst.Call(cst.Attribute(receiver, cst.Name("copy_")), [cst.Arg(value)])

    def small_statement(
        self, original: cst.BaseSmallStatement, updated: cst.BaseSmallStatement
    ) -> cst.BaseSmallStatement | None:
        if not isinstance(original, cst.Expr) or original.value not in self._statements:
            return None
        assert isinstance(updated, cst.Expr)
        call, new = original.value, updated.value
        assert isinstance(call, cst.Call) and isinstance(call.func, cst.Attribute) and isinstance(new, cst.Call)
        assert isinstance(new.func, cst.Attribute)
        method = call.func.attr.value
        inner, base = self._chain(call)
        if self._is_parameter(base):
            parameter = _without_data(base if inner else new.func.value)
            value = self._value(method, call, new if inner else _on(new, parameter))
            return None if value is None else _assign_parameter(parameter, value)
        if m.matches(base, m.Attribute(attr=m.Name("data"))):
            copied = self._copied(method, call, new, base)
            return None if copied is None else cst.Expr(copied)
        if isinstance(base, cst.Name) and self._aliases.reason(base) and self._aliases.copies_reach(base):
            copied = self._copied(method, call, new, base)
            self._report_view(base.value, original, call)
            # The result is right even where `copy_` cannot change what it is called on: a slice, a transposed tensor.
            return None if copied is None else cst.Assign([cst.AssignTarget(cst.Name(base.value))], copied)
        if isinstance(base, cst.Name) and (reason := self._aliases.reason(base)):
            how = self._sharing(base, original)
            if how is not None:
                value = self._value(method, call, new)
                return None if value is None else how(base, value)
            self.context.counts.add(f"torch.Tensor.{method}", converted=False)
            self.context.report("M302", call, f"{code_of(call)}: {reason}")
            return None
        target = base if inner else new.func.value
        if isinstance(base, cst.Subscript) and (index := self._index_that_copies(base)) is not None:
            self.context.counts.add(f"torch.Tensor.{method}", converted=False)
            self.context.report("M301", call, f"{code_of(call)} changes a copy, unless {index} is a single number")
            return None
        if not isinstance(target, cst.Name | cst.Attribute | cst.Subscript):
            self.context.counts.add(f"torch.Tensor.{method}", converted=False)
            self.context.report("M301", call, f"{code_of(call)} changes a tensor that has no name")
            return None
        value = self._value(method, call, new)
        if value is None:
            return None
        if isinstance(target, cst.Subscript) and not self.context.type_of(_container(base)).is_tensor:
            return write_into(target, value)  # an element of a list: whoever put it there has it as well
        return _assign(target, value)

    def _report_view(self, name: str, statement: cst.BaseSmallStatement, call: cst.Call) -> None:
        """The values reach the original through a reshaped or transposed view, their gradients do not."""
        flow = self._flows.of(statement)
        shared = flow.shared(name, statement)
        used = shared.held or shared.parameter is not None or flow.read_later(shared.names, statement)
        if shared.view is not None and used and not self._flows.without_gradients(statement):
            self.context.report("M304", call, f"{code_of(call)}: {name} is a view made by {shared.view}")

    def _sharing(
        self, name: cst.Name, statement: cst.BaseSmallStatement
    ) -> Callable[[cst.Name, cst.BaseExpression], cst.Assign] | None:
        """How to give a name its new value: by assignment where its tensor is visibly its own, into the memory where it
        is visibly a row or slice of another one or an element of a container; None where that is not visible."""
        flow = self._flows.of(statement)
        if not flow.knows(statement):
            return None
        shared, sources = flow.shared(name.value, statement), flow.sources(name.value, statement)
        if shared.view is not None or not all(source is not None and self._is_clear(source) for source in sources):
            return None
        if shared.held or shared.names:
            return write_into
        return _assign if shared.parameter is None else None

    def _is_clear(self, source: cst.BaseExpression) -> bool:
        """Whether it is known where the tensor of an expression comes from; of a call, which function it runs."""
        if not isinstance(source, cst.Call):
            return True
        kind = self.context.type_of(source.func)
        return (
            self._aliases.is_fresh(source)
            or bool(called_functions(self.context, source))
            or (kind.kind == "object" and kind.name.startswith("torch.nn.") and kind.name not in _PASSING_ON)
        )

    def _is_slice(self, node: cst.BaseExpression) -> bool:
        """Whether a tensor expression is a part of another one, which MindSpore's `copy_` does not reach."""
        if isinstance(node, cst.Subscript):
            container = self.context.type_of(node.value)
            return container.is_tensor or container.kind == "parameter"
        return m.matches(node, m.Call(func=m.Attribute(attr=m.OneOf(*map(m.Name, sorted(_PARTS))))))

    def _index_that_copies(self, node: cst.Subscript) -> str | None:
        """The part of an index whose result in torch is no view of the tensor."""
        if not self._is_slice(node):
            return None
        for element in node.slice:
            if isinstance(element.slice, cst.Index) and self.context.type_of(element.slice.value).is_tensor:
                return code_of(element.slice.value)
        return None

    def _is_parameter(self, node: cst.BaseExpression) -> bool:
        if m.matches(node, m.Attribute(attr=m.Name("data"))):
            assert isinstance(node, cst.Attribute)
            node = node.value
        return self.context.type_of(node).kind == "parameter"


def _assign(target: cst.BaseAssignTargetExpression, value: cst.BaseExpression) -> cst.Assign:
    return cst.Assign([cst.AssignTarget(target)], value)


def _copied_from(call: cst.Call) -> cst.BaseExpression | None:
    """`y` of `x.copy_(y)`; whether the copy waits does not matter."""
    given = [arg for arg in call.args if arg.keyword is None or arg.keyword.value != "non_blocking"]
    if not given or given[0].star or given[0].keyword is not None or len(given) > 2:
        return None
    return given[0].value


def _container(node: cst.BaseExpression) -> cst.BaseExpression:
    return node.value if isinstance(node, cst.Subscript) else node


def _on(call: cst.Call, receiver: cst.BaseExpression) -> cst.Call:
    assert isinstance(call.func, cst.Attribute)
    return call.with_changes(func=call.func.with_changes(value=receiver))


def _without_data(node: cst.BaseExpression) -> cst.BaseExpression:
    if isinstance(node, cst.Attribute) and node.attr.value == "data":
        return node.value
    return node


def _assign_parameter(target: cst.BaseExpression, value: cst.BaseExpression) -> cst.Expr:
    function = cst.parse_expression("mindspore.ops.assign")
    return cst.Expr(cst.Call(function, [cst.Arg(target), cst.Arg(value)]))
