"""Whether code is being compiled by `ms.jit`, and results with field names that stay differentiable there."""

from __future__ import annotations

from typing import NamedTuple

from mindspore import Tensor
from mindspore.graph.api import _run_in_jit as in_graph

__all__ = ["Extremes", "ValuesIndices", "in_graph", "values_indices"]


class ValuesIndices(NamedTuple):
    """Result of topk, sort, max along an axis and the like."""

    values: Tensor
    indices: Tensor


class Extremes(NamedTuple):
    """Result of aminmax."""

    min: Tensor
    max: Tensor


def values_indices(values: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
    """The pair with field names, or a plain tuple inside `ms.jit`.

    MindSpore 2.10 builds a named tuple inside a graph as an opaque Python object and silently stops the gradient there.
    """
    if in_graph():  # @jit.cond: True
        return values, indices
    return ValuesIndices(values, indices)
