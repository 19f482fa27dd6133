"""Training loops: what computes the loss becomes a function, `loss.backward()` a call of its gradient function.

    for x, y in loader:                       def compute_loss(x, y):
        loss = model(x, y) / accumulation         loss = model(x, y) / accumulation
        loss.backward()                           return loss

                                              loss_and_backward = backward_of(compute_loss, model)
                                              for x, y in loader:
                                                  loss = loss_and_backward(x, y)

`backward_of` makes its `mindspore.value_and_grad` once and adds to `parameter.grad` what backward() would have added,
so `zero_grad`, clipping, accumulation and `step` stay where and what they are.

Where that is not possible (`make_plan` says why), `ms_compat.tape.backward(loss)` goes back through the operations as
they ran, which is as exact, and cannot be compiled.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import libcst as cst

from migrate.code.compilable import obstacle
from migrate.code.context import FileContext, code_of
from migrate.code.dataflow import dataflow
from migrate.code.dataflow.backward_plan import (
    Block,
    Plan,
    Refused,
    backward_call,
    find_sites,
    loss_statements,
    make_plan,
)
from migrate.code.execution import STAYS_EAGER
from migrate.code.passes.base import Pass

BACKWARD_OF = "ms_compat.backward.backward_of"
TAPE = "ms_compat.tape.backward"
NAME = "torch.Tensor.backward"
_COMMA = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
Statement = cst.SimpleStatementLine | cst.BaseCompoundStatement


Updates = Mapping[cst.CSTNode, Statement]


class Training(Pass):
    """Plans on the original tree, assembles from the rewritten statements."""

    enters = (cst.Module,)

    def __init__(self, context: FileContext) -> None:
        super().__init__(context)
        self._plans: dict[cst.CSTNode, list[Plan]] = {}
        self._refused: dict[cst.CSTNode, str] = {}
        self._obstacles: dict[cst.CSTNode, str | None] = {}
        """By converted call: what keeps its step from running as one graph."""
        self._insert: dict[cst.CSTNode, list[tuple[cst.CSTNode, list[Statement]]]] = {}
        self._taken: dict[cst.CSTNode, set[str]] = {}

    def enter(self, node: cst.CSTNode) -> None:
        if not isinstance(node, cst.Module) or ".backward(" not in (self.context.file.source.text or ""):
            return
        sites = find_sites(self.context)
        claims = Counter(statement for site in sites for statement in loss_statements(self.context, site))
        for site in sites:
            plan = make_plan(self.context, site)
            if any(claims[statement] > 1 for statement in loss_statements(self.context, site)):
                plan = Refused(site, "two backward() share the computation of their losses")
            self.context.owned.add(site.call.func)
            if isinstance(plan, Refused):
                self._refused[site.call] = plan.reason
                continue
            plan.function = self._free("compute_loss", site.scope)
            plan.gradient = self._free("loss_and_backward", site.scope)
            self._obstacles[site.call] = obstacle(self.context, [*plan.region, site.loss])
            self._plans.setdefault(site.block, []).append(plan)

    def _free(self, name: str, scope: cst.CSTNode) -> str:
        """A name that the file does not use, nor another conversion in the same function."""
        if scope not in self._taken:
            tree = self.context.file.tree
            self._taken[scope] = dataflow.reads(tree) | dataflow.writes(tree)
        taken = self._taken[scope]
        number, candidate = 1, name
        while candidate in taken:
            number += 1
            candidate = f"{name}_{number}"
        taken.add(candidate)
        return candidate

    def call(self, original: cst.Call, updated: cst.Call) -> cst.BaseExpression | None:
        if original in self._refused:
            self.context.counts.add(NAME, converted=True)
            self.context.report("M403", original, f"{code_of(original)}: {self._refused[original]}")
            assert isinstance(updated.func, cst.Attribute)
            loss = cst.Arg(updated.func.value.with_changes(lpar=[], rpar=[]))
            args = [loss.with_changes(comma=_COMMA), *updated.args] if updated.args else [loss]
            return updated.with_changes(func=cst.parse_expression(TAPE), args=args)
        if original in self._obstacles:
            self.context.counts.add(NAME, converted=True)
            message = f"gradients of {code_of(original.func)[: -len('.backward')]}"
            reason = self._obstacles[original]
            self.context.report("M402", original, message + (f"{STAYS_EAGER}{reason}" if reason else ""))
            return updated
        return None

    def block(self, original: Block, updated: Block) -> Block | None:
        plans = self._plans.get(original, [])
        inserts = self._insert.get(original, [])
        if not plans and not inserts:
            return None
        new: dict[cst.CSTNode, Statement] = dict(zip(original.body, updated.body, strict=True))  # type: ignore[arg-type]
        replaced: dict[cst.CSTNode, list[Statement]] = {}
        for plan in plans:
            definition, call = _definition(plan, new), _call(plan, new)
            for statement in (*plan.region, *plan.before, *plan.after):
                replaced[statement] = []
            stay_before = [new[s] for s in plan.before]
            stay_after = [new[s] for s in plan.after]
            lines: list[Statement] = [*stay_before, call, *stay_after]
            replaced[plan.site.line] = lines
            if plan.anchor is plan.site.line:
                replaced[plan.site.line] = _in_front(definition, lines, original, [*plan.region, plan.anchor])
            else:
                self._insert.setdefault(plan.anchor_block, []).append((plan.anchor, definition))
        # A loop of this very block may be the anchor of a plan inside it.
        for anchor, definition in self._insert.get(original, []):
            replaced[anchor] = _in_front(definition, replaced.get(anchor, [new[anchor]]), original, [anchor])
        body: list[Statement] = []
        for statement in original.body:
            body += replaced.get(statement, [new[statement]])
        return updated.with_changes(body=body)


def _definition(plan: Plan, new: Updates) -> list[Statement]:
    """`def compute_loss(...)` and the line that makes its gradient function."""
    body: list[Statement] = [new[s] for s in plan.region]
    if body:
        body[0] = body[0].with_changes(leading_lines=_comments(body[0].leading_lines))
    line = new[plan.site.line]
    assert isinstance(line, cst.SimpleStatementLine)
    loss = backward_call(line).func.value  # type: ignore[attr-defined]
    loss = loss.with_changes(lpar=[], rpar=[]) if "\n" not in cst.Module([]).code_for_node(loss) else loss
    values = [loss, *(cst.Name(n) for n in plan.outputs)]
    result = values[0] if len(values) == 1 else cst.Tuple([cst.Element(v) for v in values], lpar=[], rpar=[])
    body.append(cst.SimpleStatementLine([cst.Return(result)]))
    parameters = cst.Parameters([cst.Param(cst.Name(n)) for n in plan.parameters])
    function = cst.FunctionDef(cst.Name(plan.function), parameters, cst.IndentedBlock(body))
    arguments = ", ".join([plan.function, *plan.sources])
    make = cst.parse_statement(f"{plan.gradient} = {BACKWARD_OF}({arguments})")
    assert isinstance(make, cst.SimpleStatementLine)
    return [function, make]


def _in_front(
    definition: list[Statement], lines: list[Statement], block: Block, opening: Sequence[cst.CSTNode]
) -> list[Statement]:
    """The function and its gradient function before some lines, with the usual blank lines.

    Nothing stands above them if one of `opening` is the first statement of an indented block.
    """
    blanks = [cst.EmptyLine(indent=False)] * (2 if isinstance(block, cst.Module) else 1)
    first = isinstance(block, cst.IndentedBlock) and block.body[0] in opening
    function, make = definition
    function = function.with_changes(leading_lines=() if first else blanks)
    make = make.with_changes(leading_lines=blanks)
    after = lines[0]
    if not any(line.comment is None for line in after.leading_lines):
        after = after.with_changes(leading_lines=[blanks[0], *after.leading_lines])
    return [function, make, after, *lines[1:]]


def _call(plan: Plan, new: Updates) -> cst.SimpleStatementLine:
    """The statement in place of `loss.backward()`."""
    line = new[plan.site.line]
    assert isinstance(line, cst.SimpleStatementLine)
    names = list(plan.outputs)
    if plan.loss_is_used or names:
        names.insert(0, code_of(plan.site.loss) if isinstance(plan.site.loss, cst.Name) else "_")
    call = f"{plan.gradient}({', '.join(plan.parameters)})"
    statement = cst.parse_statement(f"{', '.join(names)} = {call}" if names else call)
    assert isinstance(statement, cst.SimpleStatementLine)
    leading = list(line.leading_lines)
    if plan.region:
        first = new[plan.region[0]]
        blanks = [e for e in first.leading_lines if e.comment is None][:1]
        leading = [*blanks, *leading] if not any(e.comment is None for e in leading) else leading
    return statement.with_changes(leading_lines=leading, trailing_whitespace=line.trailing_whitespace)


def _comments(lines: Sequence[cst.EmptyLine]) -> list[cst.EmptyLine]:
    return [line for line in lines if line.comment is not None]
