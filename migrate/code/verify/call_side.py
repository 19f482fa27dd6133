"""Compares the calls of models between which a tape records: each eager and as a graph, with its gradients."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from migrate.code.execution import call_place
from migrate.code.model_calls import model_calls
from migrate.code.verify.graph_comparison import GraphComparison
from migrate.code.verify.module_graphs import helper
from migrate.sides.outputs import leaves

if TYPE_CHECKING:
    from migrate.code.verify.step_side import Comparison

Place = tuple[str, int]


class CallComparison:
    """The outermost calls of cells in files whose losses go back through a tape."""

    def __init__(self, comparison: Comparison, files: list[str]) -> None:
        from mindspore import nn

        self.comparison, self.files = comparison, frozenset(files)
        self.graph_call: Any = helper("graph_call")
        self.is_recorded: Callable[[], bool] = helper("decode_step").is_recorded
        self._comparisons: dict[tuple[Place, int], GraphComparison] = {}
        self._sites: dict[str, dict[int, list[str]]] = {}
        self._is_inside = False
        original = nn.Cell.__call__

        def called(cell: Any, *args: Any, **kwargs: Any) -> Any:
            if self._is_inside or not self.is_recorded():
                return original(cell, *args, **kwargs)
            frame = sys._getframe(1)
            self._is_inside = True
            try:
                file, line = self.comparison.place(frame.f_code.co_filename, frame.f_lineno)
                if file in self.files and (name := self._name(file, line, cell, frame)):
                    place = (call_place(file, name), line)
                    if place not in comparison.reasons:
                        self._compare(place, cell, args, kwargs)
                return original(cell, *args, **kwargs)
            finally:
                self._is_inside = False

        nn.Cell.__call__ = called

    def _name(self, file: str, line: int, cell: Any, frame: Any) -> str | None:
        """By which the line calls the cell; None if it has nothing to train, or no name of its own there."""
        if file not in self._sites:
            with open(frame.f_code.co_filename, encoding="utf-8") as text:
                self._sites[file] = model_calls(text.read())
        if not any(parameter.requires_grad for parameter in cell.get_parameters()):
            return None
        names = self._sites[file].get(line, [])
        found = [name for name in names if _value(name, frame) is cell]
        return found[0] if len(found) == 1 else None

    def _compare(self, place: Place, cell: Any, args: Any, kwargs: Any) -> None:
        if self.comparison.distrusted(place, [cell]):
            return
        key = (place, id(cell))
        if key not in self._comparisons:
            self._comparisons[key] = _comparison(self.graph_call.RecordedCall(cell), cell)
        named = [p for p in cell.get_parameters() if p.requires_grad]
        inputs = sum(_is_differentiable(value) for value in [*args, *kwargs.values()])
        named += [SimpleNamespace(name=f"input {number}") for number in range(inputs)]
        self.comparison.settle(place, self._comparisons[key], named, args, kwargs)


def _value(name: str, frame: Any) -> Any:
    first, *attributes = name.split(".")
    value = frame.f_locals.get(first, frame.f_globals.get(first))
    for attribute in attributes:
        value = getattr(value, attribute, None)
    return value


def _comparison(call: Any, cell: Any) -> GraphComparison:
    from mindspore import Parameter, Tensor, ops
    from mindspore._c_expression import run_backward

    def run_by(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(named: Any, args: Any, kwargs: Any) -> Any:
            sources = [p for p in named if isinstance(p, Parameter)]

            def fresh(value: Any) -> Any:
                if not _is_differentiable(value):
                    return value
                sources.append(Parameter(value.copy(), name=f"input{len(sources)}"))
                return sources[-1] * 1

            result = function(*map(fresh, args), **{name: fresh(value) for name, value in kwargs.items()})
            found = [leaf for _, leaf in leaves(result, Tensor)]
            # Weights that differ from element to element, and not from run to run.
            parts = [(leaf * ops.sin(ops.arange(leaf.size).reshape(leaf.shape) + 1.0)).sum() for leaf in found]
            total = sum(part for part, leaf in zip(parts, found, strict=True) if leaf.is_floating_point())
            one = ops.ones_like(total)
            gradients = run_backward((total,), (one,), False, False, tuple(sources), True, accumulate_grad=False)
            empty = [ops.zeros_like(s) if g is None else g for s, g in zip(sources, gradients, strict=True)]
            return [ops.stop_gradient(leaf) for leaf in found], empty

        return run

    return GraphComparison(run_by(call), call.read, run_by(cell), call, 3)


def _is_differentiable(value: Any) -> bool:
    from mindspore import Tensor

    return isinstance(value, Tensor) and value.is_floating_point()
