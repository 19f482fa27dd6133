"""Loops of generation: the model that is called at every step gets a switch, `decode_step(model)(x, input_pos)`.

`decode_step` gives the model itself until a comparison of runs allows `compiled=True`. Steps that would be another
graph each, because a sequence or a cache grows, are left alone; the report says which line does that.
"""

from __future__ import annotations

import libcst as cst

from migrate.code.compilable import changing_shapes, generation_obstacle
from migrate.code.context import FileContext, code_of
from migrate.code.dataflow.generation_loops import generation_steps
from migrate.code.execution import STAYS_EAGER
from migrate.code.passes.base import Pass

DECODE_STEP = "ms_compat.decode_step.decode_step"


class Decoding(Pass):
    """Calls of models in loops of generation."""

    enters = (cst.Module,)

    def __init__(self, context: FileContext) -> None:
        super().__init__(context)
        self._obstacles: dict[cst.CSTNode, str | None] = {}
        """By call with a switch: what the source has against a graph."""
        self._changing: dict[cst.CSTNode, str] = {}
        """By call without one: what changes with every step."""

    def enter(self, node: cst.CSTNode) -> None:
        if not self.context.uses_torch:
            return
        for step in generation_steps(self.context):
            if reason := changing_shapes(self.context, step):
                self._changing[step.call] = reason
            else:
                self._obstacles[step.call] = generation_obstacle(self.context, step)

    def call(self, original: cst.Call, updated: cst.Call) -> cst.BaseExpression | None:
        if original in self._changing:
            self.context.report("M405", original, f"{code_of(original.func)}{STAYS_EAGER}{self._changing[original]}")
            return None
        if original not in self._obstacles:
            return None
        reason = self._obstacles[original]
        self.context.report("M404", original, code_of(original.func) + (f"{STAYS_EAGER}{reason}" if reason else ""))
        model = updated.func
        if isinstance(model, cst.Attribute) and model.attr.value == "forward":
            model = model.with_changes(attr=cst.Name("construct"))
        switch = cst.Call(cst.parse_expression(DECODE_STEP), [cst.Arg(model)])
        return updated.with_changes(func=switch)
