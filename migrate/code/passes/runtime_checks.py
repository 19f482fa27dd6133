"""Tensor methods on objects of unknown type: the running program asks whether the object is a tensor.

`x.size(0)` becomes `x.shape[0] if isinstance(x, ms.Tensor) else x.size(0)` where looking at `x` twice changes nothing,
and a helper that takes the object once everywhere else.
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from migrate.code.context import FileContext, code_of
from migrate.code.inference.evidence import PLAIN_METHODS
from migrate.code.passes.base import Pass
from migrate.code.rows.binding import bind
from migrate.code.rows.template import Expansion, Refusal, select
from migrate.code.trees.dotted import dotted
from migrate.code.trees.walk import walk

TENSOR = "mindspore.Tensor"
TENSOR_OR_CELL = "(mindspore.Tensor, mindspore.nn.Cell)"
IF_TENSOR = "ms_compat.methods.if_tensor"
IF_TENSOR_OR_CELL = "ms_compat.methods.if_tensor_or_cell"
_ELSEWHERE = ("to", "backward")
"""Methods that other passes answer for."""


class RuntimeChecks(Pass):
    """Calls whose receiver may be a tensor or anything else."""

    enters = (cst.Expr, cst.Assign, cst.AnnAssign, cst.Return, cst.Arg, cst.IfExp, cst.Call)

    rule = None

    def __init__(self, context: FileContext) -> None:
        super().__init__(context)
        self._settled: set[cst.CSTNode] = set()
        """Calls that an earlier conversion put behind a question."""
        self._discarded: set[cst.CSTNode] = set()
        """Calls whose result nobody takes: a tensor would not be changed by them."""
        self._bare: set[cst.CSTNode] = set()
        """Calls that stand where a conditional expression needs no brackets."""

    def enter(self, node: cst.CSTNode) -> None:
        if isinstance(node, cst.Expr):
            self._discarded.add(node.value)
        elif isinstance(node, cst.Assign | cst.AnnAssign | cst.Return | cst.Arg) and node.value is not None:
            if not (isinstance(node, cst.Arg) and node.star):
                self._bare.add(node.value)
        elif isinstance(node, cst.IfExp) and (asked := self._asked(node.test)):
            for call in (c for c in walk(node) if isinstance(c, cst.Call) and isinstance(c.func, cst.Attribute)):
                if code_of(call.func.value) == asked:  # type: ignore[attr-defined]
                    self._settled.add(call)
        elif isinstance(node, cst.Call) and self.context.resolver.qualified(node.func) in (
            IF_TENSOR,
            IF_TENSOR_OR_CELL,
        ):
            lambdas = [arg.value for arg in node.args[1:] if isinstance(arg.value, cst.Lambda)]
            self._settled.update(branch.body for branch in lambdas)

    def _asked(self, test: cst.BaseExpression) -> str | None:
        """The object of `isinstance(x, ms.Tensor)`."""
        if not isinstance(test, cst.Call) or len(test.args) != 2:
            return None
        if self.context.resolver.qualified(test.func) != "builtins.isinstance":
            return None
        kind = test.args[1].value
        kind = kind.elements[0].value if isinstance(kind, cst.Tuple) and kind.elements else kind
        return code_of(test.args[0].value) if self.context.resolver.qualified(kind) == TENSOR else None

    def call(self, original: cst.Call, updated: cst.Call) -> cst.BaseExpression | None:
        if original in self._settled:
            return updated
        if not isinstance(original.func, cst.Attribute) or not isinstance(updated.func, cst.Attribute):
            return None
        method = original.func.attr.value
        if not self._is_open(original.func) or method in _ELSEWHERE:
            return None
        name = f"torch.Tensor.{method}"
        if method.endswith("_") and not method.endswith("__"):
            if name in self.context.table or name[:-1] in self.context.table:
                self._ask(name, original)
            return None
        if (original in self._discarded and method in PLAIN_METHODS) or not any(self._takes(name, updated)):
            return None
        return self._converted(name, original, updated)

    def _is_open(self, function: cst.Attribute) -> bool:
        """Whether a method call may be a tensor's or something else's."""
        kind = self.context.type_of(function.value)
        unknown = not kind.is_known or (kind.kind == "object" and not kind.name)
        return self.context.uses_torch and unknown and self.context.resolver.qualified(function) is None

    def _takes(self, name: str, call: cst.Call) -> Iterator[bool]:
        """For each row of a tensor method, whether torch would take the call."""
        for row in self.context.table.rows(name):
            yield row.signature is not None and not isinstance(bind(row, call.args), Refusal)

    def _converted(self, name: str, original: cst.Call, updated: cst.Call) -> cst.BaseExpression | None:
        assert isinstance(original.func, cst.Attribute) and isinstance(updated.func, cst.Attribute)
        receiver = updated.func.value
        simple = _is_simple(receiver) and self._is_cheap(original.func.value)
        holder = receiver if simple else _free_name(updated)
        other = updated if simple else updated.with_changes(func=updated.func.with_changes(value=holder))
        found = select(self.context.table, name, other.args, holder, self.context.target, {})
        if isinstance(found, Refusal):
            rows = self.context.table.rows(name)
            if not (original.func.attr.value in PLAIN_METHODS and all(row.status == "unsupported" for row in rows)):
                self._ask(name, original)
            return None
        if code_of(found.node) == code_of(other):
            return None
        unsafe = _has_comment(updated) or (not simple and not _can_move(updated))
        module = self._module_form(original.func.attr.value, other, holder)
        if unsafe or module not in (code_of(found.node), code_of(other)):
            self._ask(name, original)
            return None
        self.context.accept(name, found)
        subject = code_of(original.func.value)
        with_modules = module == code_of(found.node)
        kind = "a tensor or a module" if with_modules else "a tensor"
        self.context.report("M121", original, f"{code_of(original.func)}: asks at run time if {subject} is {kind}")
        if simple:
            return self._conditional(original, other, found, TENSOR_OR_CELL if with_modules else TENSOR)
        return _helper(IF_TENSOR_OR_CELL if with_modules else IF_TENSOR, receiver, holder, other, found)

    def _module_form(self, method: str, call: cst.Call, receiver: cst.BaseExpression) -> str | None:
        """What the call is for a module, `x` for `x.cuda()`; None when it has no form there."""
        name = f"torch.nn.Module.{method}"
        if name not in self.context.table:
            return code_of(call)
        found = select(self.context.table, name, call.args, receiver, self.context.target, {})
        return code_of(found.node) if isinstance(found, Expansion) else None

    def _is_cheap(self, node: cst.BaseExpression) -> bool:
        """Whether named indices are numbers or texts; `x[mask]` would be computed twice."""
        indices = (n.slice[0].slice for n in walk(node) if isinstance(n, cst.Subscript))
        names = (i.value for i in indices if isinstance(i, cst.Index) and isinstance(i.value, cst.Name))
        return all(self.context.type_of(name).kind in ("number", "value") for name in names)

    def _ask(self, name: str, node: cst.Call) -> None:
        assert isinstance(node.func, cst.Attribute)
        self.context.counts.add(name, converted=False)
        self.context.report("M120", node, f"{code_of(node.func)}: is {code_of(node.func.value)} a tensor?")

    def _conditional(self, original: cst.Call, other: cst.Call, found: Expansion, kind: str) -> cst.BaseExpression:
        assert isinstance(other.func, cst.Attribute)
        test = cst.Call(cst.Name("isinstance"), [cst.Arg(other.func.value), cst.Arg(cst.parse_expression(kind))])
        result = cst.IfExp(test=test, body=found.node, orelse=other.with_changes(lpar=[], rpar=[]))
        if original in self._bare and not original.lpar and "\n" not in cst.Module([]).code_for_node(result):
            return result
        return result.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])


def _helper(
    name: str, receiver: cst.BaseExpression, holder: cst.BaseExpression, other: cst.Call, found: Expansion
) -> cst.Call:
    assert isinstance(holder, cst.Name)
    branches = [
        cst.Lambda(cst.Parameters([cst.Param(holder)]), body)
        for body in (found.node, other.with_changes(lpar=[], rpar=[]))
    ]
    if isinstance(receiver, cst.IfExp | cst.BinaryOperation | cst.BooleanOperation) and len(receiver.lpar) == 1:
        receiver = receiver.with_changes(lpar=[], rpar=[])  # an argument needs no brackets
    arguments = [cst.Arg(receiver), *(cst.Arg(branch) for branch in branches)]
    return cst.Call(cst.parse_expression(name), arguments, lpar=other.lpar, rpar=other.rpar)


def _is_simple(node: cst.BaseExpression) -> bool:
    """A name, an attribute, or an element at a constant or named place: looking at it twice changes nothing."""
    if isinstance(node, cst.Subscript):
        index = node.slice[0].slice
        constant = isinstance(index, cst.Index) and (
            isinstance(index.value, cst.Name | cst.Integer | cst.SimpleString) or _is_negative(index.value)
        )
        return len(node.slice) == 1 and constant and _is_simple(node.value)
    return dotted(node) is not None or (isinstance(node, cst.Attribute) and _is_simple(node.value))


def _is_negative(node: cst.BaseExpression) -> bool:
    return (
        isinstance(node, cst.UnaryOperation)
        and isinstance(node.operator, cst.Minus)
        and isinstance(node.expression, cst.Integer)
    )


def _free_name(call: cst.Call) -> cst.Name:
    """A name for the receiver that the arguments do not use."""
    used = {node.value for arg in call.args for node in walk(arg) if isinstance(node, cst.Name)}
    return cst.Name(next(name for name in ("t", "tensor", "receiver", "_receiver") if name not in used))


def _can_move(call: cst.Call) -> bool:
    """Whether the arguments mean the same inside a lambda."""
    inner = [node for arg in call.args for node in walk(arg)]
    if any(isinstance(node, cst.Await | cst.Yield | cst.NamedExpr) for node in inner):
        return False
    return not any(isinstance(node, cst.Name) and node.value in ("super", "locals", "__class__") for node in inner)


def _has_comment(node: cst.CSTNode) -> bool:
    return "#" in cst.Module([]).code_for_node(node) and any(True for _ in _comments(node))


def _comments(node: cst.CSTNode) -> Iterator[cst.Comment]:
    for child in node.children:
        if isinstance(child, cst.Comment):
            yield child
        else:
            yield from _comments(child)
