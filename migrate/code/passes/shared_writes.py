"""Writes that other holders of a tensor see in torch: `x += y`, and elements written through views.

`x += y` gives the name a new tensor in MindSpore; torch changes the tensor itself. Where another name, a container or a
caller uses it afterwards, `x[()] = x + y` writes into it, also through rows and slices and with the right gradient.
Of a parameter that is `assign`. Where nothing else has the tensor, the line stays.

Elements written through a reshaped or transposed view reach the original in value, or not at all, but never with their
gradient: a finding.
"""

from __future__ import annotations

import libcst as cst
import libcst.matchers as m

from migrate.code.context import FileContext, code_of
from migrate.code.dataflow.callers import callers_of
from migrate.code.dataflow.memory import DETACHED, HELD, are_apart, is_picked, roots, write_into
from migrate.code.dataflow.sharing import Flows, ScopeFlow
from migrate.code.passes.base import Pass
from migrate.code.rows.binding import is_literal
from migrate.code.trees.walk import walk

_OPERATORS: dict[type[cst.BaseAugOp], cst.BaseBinaryOp] = {
    cst.AddAssign: cst.Add(),
    cst.SubtractAssign: cst.Subtract(),
    cst.MultiplyAssign: cst.Multiply(),
    cst.DivideAssign: cst.Divide(),
    cst.FloorDivideAssign: cst.FloorDivide(),
    cst.ModuloAssign: cst.Modulo(),
    cst.PowerAssign: cst.Power(),
    cst.MatrixMultiplyAssign: cst.MatrixMultiply(),
    cst.BitAndAssign: cst.BitAnd(),
    cst.BitOrAssign: cst.BitOr(),
    cst.BitXorAssign: cst.BitXor(),
    cst.LeftShiftAssign: cst.LeftShift(),
    cst.RightShiftAssign: cst.RightShift(),
}
_PLAIN = cst.Name | cst.Attribute | cst.Call | cst.Subscript | cst.Integer | cst.Float
_CONSTANTS = frozenset(
    {"zeros", "ones", "full", "empty", "arange", "zeros_like", "ones_like", "full_like", "empty_like"}
)


class SharedWrites(Pass):
    """Augmented assignments and element assignments of tensors."""

    rule = "C211"
    enters = (cst.Module,)

    def __init__(self, context: FileContext) -> None:
        super().__init__(context)
        self._flows = Flows(context)
        self._writes: list[cst.AugAssign | cst.Assign] = []
        """The statements that write into tensors."""
        self._copied: set[cst.CSTNode] = set()
        """Picked elements that are written to afterwards: MindSpore would write them back."""

    def enter(self, node: cst.CSTNode) -> None:
        if isinstance(node, cst.Module) and self.context.uses_torch:
            self._find(node)
            for statement in self._writes:
                written = self._written(statement)
                if (
                    isinstance(written, cst.Name)
                    and not _is_whole(statement)
                    and self._flows.of(statement).knows(statement)
                ):
                    sources = self._flows.of(statement).sources(written.value, statement)
                    self._copied.update(s for s in sources if isinstance(s, cst.Subscript) and self._is_copy(s))

    def _is_copy(self, node: cst.Subscript) -> bool:
        return self.context.type_of(node.value).is_tensor and is_picked(self.context, node)

    def _find(self, node: cst.CSTNode) -> None:
        for child in walk(node, skip=(cst.Call, cst.Name, cst.Attribute)):
            if isinstance(child, cst.AugAssign | cst.Assign) and self._written(child) is not None:
                self._writes.append(child)

    def _written(self, node: cst.AugAssign | cst.Assign) -> cst.BaseExpression | None:
        """The tensor that a statement changes in torch."""
        if isinstance(node, cst.AugAssign) and not isinstance(node.target, cst.Subscript):
            return node.target if self.context.type_of(node.target).is_tensor else None
        target = _target(node)
        while isinstance(target, cst.Subscript):
            target = target.value
            if self.context.type_of(target).is_tensor and not isinstance(target, cst.Subscript):
                return target
        return None

    def small_statement(
        self, original: cst.BaseSmallStatement, updated: cst.BaseSmallStatement
    ) -> cst.BaseSmallStatement | None:
        if isinstance(original, cst.Expr):
            self._method(original)
        if not isinstance(original, cst.AugAssign | cst.Assign):
            return None
        if isinstance(original, cst.Assign) and original.value in self._copied:
            assert isinstance(updated, cst.Assign)
            return updated.with_changes(value=cst.Call(cst.Attribute(updated.value, cst.Name("copy"))))
        if isinstance(original, cst.AugAssign) and isinstance(original.target, cst.Name):
            self._ask(original, original.target)
        if original not in self._writes:
            return None
        written = self._written(original)
        assert written is not None
        if isinstance(original, cst.AugAssign) and not isinstance(original.target, cst.Subscript):
            assert isinstance(updated, cst.AugAssign)
            return self._augmented(original, updated)
        self._elements(original, written)
        return None

    # -- x += y
    def _augmented(self, original: cst.AugAssign, updated: cst.AugAssign) -> cst.BaseSmallStatement | None:
        target = original.target
        if self.context.type_of(target).kind == "parameter" and not m.matches(target, m.Attribute(attr=m.Name("grad"))):
            assign = cst.parse_expression("mindspore.ops.assign")
            return cst.Expr(cst.Call(assign, [cst.Arg(updated.target), cst.Arg(_value(updated))]))
        if not isinstance(target, cst.Name):
            return None
        flow = self._flows.of(original)
        if not flow.knows(original):
            return None
        shared = flow.shared(target.value, original)
        held = shared.held or flow.read_later(
            shared.names | {part for part, _ in flow.parts(target.value, original)}, original
        )
        if not held and shared.parameter is not None:
            kept = self._callers_keep(original, shared.parameter)
            if kept is None:
                self.context.report("M305", original, f"{code_of(original)}: {shared.parameter} is the caller's tensor")
            held = bool(kept)
        if not held:
            return None
        if shared.view is not None:
            self._report_view(original, target.value, shared.view)
        self._report_parts(original, target, target.value, flow)
        assert isinstance(updated.target, cst.Name)
        return write_into(updated.target, _value(updated)).with_changes(semicolon=updated.semicolon)

    def _ask(self, node: cst.AugAssign, name: cst.Name) -> None:
        """`for p in params: p -= step`: if these are tensors, torch changes them where they are kept."""
        if not self.context.uses_torch or self.context.type_of(name).is_known:
            return
        flow = self._flows.of(node)
        if flow.knows(node) and flow.shared(name.value, node).held:
            self.context.report("M120", node, f"{code_of(node)}: is {name.value} a tensor?")

    def _callers_keep(self, node: cst.AugAssign, parameter: str) -> bool | None:
        scope = self._flows.scope(node)
        function = next((f for f in self.context.symbols.functions.values() if f.node is scope), None)
        return callers_of(self.context.analysis).keep(function, parameter) if function else None

    # -- x.mul_(y), x[i].mul_(y): converted by another pass
    def _method(self, node: cst.Expr) -> None:
        function = node.value.func if isinstance(node.value, cst.Call) else None
        if not isinstance(function, cst.Attribute) or not function.attr.value.endswith("_"):
            return
        target: cst.BaseExpression = function.value
        name = target
        while isinstance(name, cst.Subscript):
            name = name.value
        if isinstance(name, cst.Name) and self.context.type_of(name).is_tensor and self._flows.of(node).knows(node):
            self._report_parts(node, target, name.value, self._flows.of(node))

    # -- x[i] = y
    def _elements(self, node: cst.AugAssign | cst.Assign, written: cst.BaseExpression) -> None:
        if isinstance(written, cst.Name):
            flow = self._flows.of(node)
            if not flow.knows(node):
                return
            shared = flow.shared(written.value, node)
            used = shared.held or shared.parameter is not None or flow.read_later(shared.names, node)
            names, view = shared.names, shared.view if used else None
            self._report_parts(node, _target(node), written.value, flow)
        else:
            found = [root for root in roots(self.context, written) if root.view is not None]
            names, view = {root.name for root in found}, found[0].view if found else None
        if view is not None and not (isinstance(node, cst.Assign) and self._is_constant(node, names)):
            self._report_view(node, code_of(written), view)

    def _is_constant(self, node: cst.Assign, names: set[str]) -> bool:
        """Whether numbers are written into tensors of numbers: `mask.view(-1)[0] = 1`; no gradient is concerned."""
        flow = self._flows.of(node)
        if not is_literal(node.value) or not flow.knows(node) or HELD in names:
            return False
        sources = [source for name in names for source in flow.sources(name, node)]
        torch_names = [self.context.torch_name(s.func) if isinstance(s, cst.Call) else None for s in sources]
        return bool(sources) and all(name is not None and name.rpartition(".")[2] in _CONSTANTS for name in torch_names)

    def _report_parts(
        self, node: cst.BaseSmallStatement, target: cst.BaseExpression, name: str, flow: ScopeFlow
    ) -> None:
        """Where gradients are followed, rows that were taken before stay what they were."""
        number = isinstance(node, cst.Assign) and is_literal(node.value)
        if number or self._flows.without_gradients(node):
            return
        for part, source in flow.parts(name, node):
            if flow.read_later({part}, node) and not are_apart(source, target):
                message = f"{code_of(node)}: {part}, taken before as a part of the tensor, is used afterwards"
                self.context.report("M304", node, message)
                return

    def _report_view(self, node: cst.AugAssign | cst.Assign, name: str, view: str) -> None:
        if self._flows.without_gradients(node) and view not in DETACHED:
            return
        self.context.report("M304", node, f"{code_of(node)}: {name} is a view made by {view}")


def _target(node: cst.AugAssign | cst.Assign) -> cst.BaseExpression:
    return node.target if isinstance(node, cst.AugAssign) else node.targets[0].target


def _is_whole(node: cst.CSTNode) -> bool:
    """`x += y`: the name gets a new tensor, whatever it was."""
    return isinstance(node, cst.AugAssign) and not isinstance(node.target, cst.Subscript)


def _value(node: cst.AugAssign) -> cst.BinaryOperation:
    right, operator = node.value, _OPERATORS[type(node.operator)]
    binds_tighter = (
        isinstance(operator, cst.Add | cst.Subtract)
        and isinstance(right, cst.BinaryOperation)
        and isinstance(right.operator, cst.Multiply | cst.Divide | cst.MatrixMultiply | cst.Power)
    )
    if not isinstance(right, _PLAIN) and not binds_tighter and not right.lpar:
        right = right.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    return cst.BinaryOperation(node.target, operator, right)
