"""Writes that other holders of a tensor see in torch: `x += y`, and elements written through views.

`x += y` gives the name a new tensor in MindSpore; torch changes the tensor itself. Where another name, a container or a
caller uses it afterwards, `x[...] = x + y` writes into it, also through rows and slices and with the right gradient.
Of a parameter that is `assign`. Where nothing else has the tensor, the line stays.

Elements written through a reshaped or transposed view reach the original in value, or not at all, but never with their
gradient: a finding.
"""

from __future__ import annotations

import libcst as cst
import libcst.matchers as m

from migrate.code.binding import is_literal
from migrate.code.context import FileContext, code_of
from migrate.code.passes.base import Pass
from migrate.code.passes.callers import callers_of
from migrate.code.passes.sharing import DETACHED, HELD, ScopeFlow, Shared, is_picked, roots

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
_WITHOUT_GRADIENT = ("torch.no_grad", "torch.inference_mode")


class SharedWrites(Pass):
    """Augmented assignments and element assignments of tensors."""

    def __init__(self, context: FileContext) -> None:
        super().__init__(context)
        self._flows: dict[cst.CSTNode, ScopeFlow] = {}
        self._scope: dict[cst.AugAssign | cst.Assign, cst.CSTNode] = {}
        """Of the statements that write: the function around them."""
        self._quiet: set[cst.CSTNode] = set()
        """Of these, the ones without gradients."""
        self._copied: set[cst.CSTNode] = set()
        """Picked elements that are written to afterwards: MindSpore would write them back."""

    def enter(self, node: cst.CSTNode) -> None:
        if isinstance(node, cst.Module) and self.context.uses_torch:
            self._find(node, node, False)
            for statement in self._scope:
                written = self._written(statement)
                if (
                    isinstance(written, cst.Name)
                    and not _is_whole(statement)
                    and self._flow(statement).knows(statement)
                ):
                    sources = self._flow(statement).sources(written.value, statement)
                    self._copied.update(s for s in sources if isinstance(s, cst.Subscript) and self._is_copy(s))

    def _is_copy(self, node: cst.Subscript) -> bool:
        return self.context.type_of(node.value).is_tensor and is_picked(self.context, node)

    def _find(self, node: cst.CSTNode, scope: cst.CSTNode, quiet: bool) -> None:
        if isinstance(node, cst.FunctionDef):
            scope = node
            quiet = any(self._stops_gradients(d.decorator) for d in node.decorators)
        elif isinstance(node, cst.With):
            quiet = quiet or any(self._stops_gradients(item.item) for item in node.items)
        elif isinstance(node, cst.AugAssign | cst.Assign):
            if self._written(node) is not None:
                self._scope[node] = scope
                if quiet:
                    self._quiet.add(node)
            return
        for child in node.children:
            if not isinstance(child, cst.BaseExpression):
                self._find(child, scope, quiet)

    def _stops_gradients(self, node: cst.BaseExpression) -> bool:
        return self.context.torch_name(node.func if isinstance(node, cst.Call) else node) in _WITHOUT_GRADIENT

    def _written(self, node: cst.AugAssign | cst.Assign) -> cst.BaseExpression | None:
        """The tensor that a statement changes in torch."""
        if isinstance(node, cst.AugAssign) and not isinstance(node.target, cst.Subscript):
            return node.target if self.context.type_of(node.target).is_tensor else None
        target: cst.BaseExpression = node.target if isinstance(node, cst.AugAssign) else node.targets[0].target
        while isinstance(target, cst.Subscript):
            target = target.value
            if self.context.type_of(target).is_tensor and not isinstance(target, cst.Subscript):
                return target
        return None

    def _flow(self, node: cst.AugAssign | cst.Assign) -> ScopeFlow:
        scope = self._scope[node]
        if scope not in self._flows:
            self._flows[scope] = ScopeFlow(self.context, scope)
        return self._flows[scope]

    def small_statement(
        self, original: cst.BaseSmallStatement, updated: cst.BaseSmallStatement
    ) -> cst.BaseSmallStatement | None:
        if not isinstance(original, cst.AugAssign | cst.Assign):
            return None
        if isinstance(original, cst.Assign) and original.value in self._copied:
            assert isinstance(updated, cst.Assign)
            return updated.with_changes(value=cst.Call(cst.Attribute(updated.value, cst.Name("copy"))))
        if original not in self._scope:
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
        flow = self._flow(original)
        if not flow.knows(original):
            return None
        shared = flow.shared(target.value, original)
        held = shared.held or flow.read_later(shared.names | shared.parts, original)
        if not held and shared.parameter is not None:
            kept = self._callers_keep(original, shared.parameter)
            if kept is None:
                self.context.report("M305", original, f"{code_of(original)}: {shared.parameter} is the caller's tensor")
            held = bool(kept)
        if not held:
            return None
        if shared.view is not None:
            self._report_view(original, target.value, shared.view)
        self._report_parts(original, shared, flow)
        everything = cst.SubscriptElement(cst.Index(cst.Ellipsis()))
        place = cst.Subscript(updated.target, [everything])
        return cst.Assign([cst.AssignTarget(place)], _value(updated), semicolon=updated.semicolon)

    def _callers_keep(self, node: cst.AugAssign, parameter: str) -> bool | None:
        scope = self._scope[node]
        function = next((f for f in self.context.symbols.functions.values() if f.node is scope), None)
        return callers_of(self.context.analysis).keep(function, parameter) if function else None

    # -- x[i] = y
    def _elements(self, node: cst.AugAssign | cst.Assign, written: cst.BaseExpression) -> None:
        if isinstance(written, cst.Name):
            flow = self._flow(node)
            if not flow.knows(node):
                return
            shared = flow.shared(written.value, node)
            used = shared.held or shared.parameter is not None or flow.read_later(shared.names, node)
            names, view = shared.names, shared.view if used else None
            self._report_parts(node, shared, flow)
        else:
            found = [root for root in roots(self.context, written) if root.view is not None]
            names, view = {root.name for root in found}, found[0].view if found else None
        if view is not None and not (isinstance(node, cst.Assign) and self._is_constant(node, names)):
            self._report_view(node, code_of(written), view)

    def _is_constant(self, node: cst.Assign, names: set[str]) -> bool:
        """Whether numbers are written into tensors of numbers: `mask.view(-1)[0] = 1`; no gradient is concerned."""
        flow = self._flow(node)
        if not is_literal(node.value) or not flow.knows(node) or HELD in names:
            return False
        sources = [source for name in names for source in flow.sources(name, node)]
        torch_names = [self.context.torch_name(s.func) if isinstance(s, cst.Call) else None for s in sources]
        return bool(sources) and all(name is not None and name.rpartition(".")[2] in _CONSTANTS for name in torch_names)

    def _report_parts(self, node: cst.AugAssign | cst.Assign, shared: Shared, flow: ScopeFlow) -> None:
        """The value of a row that was taken before is right, its gradient is that of the time when it was taken."""
        later = sorted(name for name in shared.parts if flow.read_later({name}, node))
        if later and node not in self._quiet and not (isinstance(node, cst.Assign) and is_literal(node.value)):
            message = f"{code_of(node)}: {later[0]}, taken before as a part of the tensor, is used afterwards"
            self.context.report("M304", node, message)

    def _report_view(self, node: cst.CSTNode, name: str, view: str) -> None:
        if node in self._quiet and view not in DETACHED:
            return
        self.context.report("M304", node, f"{code_of(node)}: {name} is a view made by {view}")


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
