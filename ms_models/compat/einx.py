"""Elementwise operations of einx with its patterns: `einx.subtract("j, i -> i j", keys, queries)`.

The patterns are those of einops, one side per operand. Without `->` the result has the axes of the one operand that has
all of them. Axes in square brackets raise an error, but for the one of `get_at`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mindspore import Tensor, ops
from mindspore.ops import constexpr

from .einops import reduce
from .einops_patterns import ELLIPSIS, Axes, EinopsError, read_side, solve, without_ellipsis

__all__ = [
    "add", "all", "any", "divide", "equal", "get_at", "greater", "greater_equal", "less", "less_equal", "logical_and",
    "logical_or", "max", "mean", "min", "multiply", "not_equal", "prod", "subtract", "sum", "where",
]  # fmt: skip


def add(pattern: str, *tensors: Any, **lengths: int) -> Tensor:
    """Sum of the operands over matching axes."""
    return _folded(lambda x, y: x + y, pattern, tensors, lengths)


def multiply(pattern: str, *tensors: Any, **lengths: int) -> Tensor:
    """Product of the operands over matching axes."""
    return _folded(lambda x, y: x * y, pattern, tensors, lengths)


def logical_and(pattern: str, *tensors: Any, **lengths: int) -> Tensor:
    """Whether all operands are true."""
    return _folded(ops.logical_and, pattern, tensors, lengths)


def logical_or(pattern: str, *tensors: Any, **lengths: int) -> Tensor:
    """Whether one of the operands is true."""
    return _folded(ops.logical_or, pattern, tensors, lengths)


def subtract(pattern: str, x: Any, y: Any, **lengths: int) -> Tensor:
    """`x - y` over matching axes."""
    return _folded(lambda x, y: x - y, pattern, (x, y), lengths)


def divide(pattern: str, x: Any, y: Any, **lengths: int) -> Tensor:
    """`x / y` over matching axes."""
    return _folded(lambda x, y: x / y, pattern, (x, y), lengths)


def less(pattern: str, x: Any, y: Any, **lengths: int) -> Tensor:
    """`x < y` over matching axes."""
    return _folded(lambda x, y: x < y, pattern, (x, y), lengths)


def less_equal(pattern: str, x: Any, y: Any, **lengths: int) -> Tensor:
    """`x <= y` over matching axes."""
    return _folded(lambda x, y: x <= y, pattern, (x, y), lengths)


def greater(pattern: str, x: Any, y: Any, **lengths: int) -> Tensor:
    """`x > y` over matching axes."""
    return _folded(lambda x, y: x > y, pattern, (x, y), lengths)


def greater_equal(pattern: str, x: Any, y: Any, **lengths: int) -> Tensor:
    """`x >= y` over matching axes."""
    return _folded(lambda x, y: x >= y, pattern, (x, y), lengths)


def equal(pattern: str, x: Any, y: Any, **lengths: int) -> Tensor:
    """`x == y` over matching axes."""
    return _folded(lambda x, y: x == y, pattern, (x, y), lengths)


def not_equal(pattern: str, x: Any, y: Any, **lengths: int) -> Tensor:
    """`x != y` over matching axes."""
    return _folded(lambda x, y: x != y, pattern, (x, y), lengths)


def where(pattern: str, condition: Any, x: Any, y: Any, **lengths: int) -> Tensor:
    """`x` where the condition holds, else `y`, over matching axes; `x` and `y` may be numbers."""
    laid, full, final = _laid_out(pattern, (condition, x, y), lengths)
    return _finished(ops.where(laid[0], laid[1], laid[2]), full, final)


def get_at(pattern: str, x: Tensor, places: Tensor) -> Tensor:
    """Elements of `x` at places along the one axis in brackets: `"b n [l], b n -> b n"`.

    Negative places count from the end.
    Every dimension is one axis; what both operands have goes together, and the result has all but the one in brackets.
    """
    rows, shared, order, shape, back = _taking_plan(pattern, tuple(x.shape), tuple(places.shape))
    # `[shared, l, rest]` and `[shared, places]`; with the rows counted through, one gather takes them all.
    table = ops.transpose(x, rows)
    length, rest = table.shape[shared], tuple(table.shape[shared + 1 :])
    index = ops.transpose(places, order)
    index = ops.where(index < 0, index + length, index)
    if shared:
        index = index.reshape((-1, *index.shape[shared:]))
        starts = (ops.arange(index.shape[0]) * length).astype(index.dtype)
        index = index + starts.reshape((-1, *[1] * (index.ndim - 1)))
    taken = ops.gather(table.reshape((-1, *rest)), index.reshape(-1), 0)
    return ops.transpose(taken.reshape(shape), back)


@constexpr
def _taking_plan(pattern: str, shape: tuple[int, ...], places: tuple[int, ...]) -> Any:
    left, arrow, right = pattern.partition("->")
    terms = left.split(",")
    if not arrow or len(terms) != 2:
        raise EinopsError(f"{pattern!r} does not say the axes of two operands and of the result")
    names = [axis for axis in terms[0].split() if axis.startswith("[") and axis.endswith("]")]
    sides = [read_side(text) for text in (terms[0].replace("[", " ").replace("]", " "), terms[1], right)]
    unnamed = [g for side in sides for g in side if len(g) != 1 or "#" in g[0] or g[0] == ELLIPSIS]
    if len(names) != 1 or terms[0].count("[") != 1 or unnamed:
        raise EinopsError(f"{pattern!r} needs one axis in brackets, and axes with names alone")
    mine, other, result = ([group[0] for group in side] for side in sides)
    along = names[0].strip("[]")
    if len(mine) != len(shape) or len(other) != len(places):
        raise EinopsError(f"{pattern!r} does not fit operands with {len(shape)} and {len(places)} dimensions")
    common = [axis for axis in mine if axis in other]
    rest = [axis for axis in mine if axis not in other and axis != along]
    own = [axis for axis in other if axis not in mine]
    sizes = dict(zip(mine, shape, strict=True))
    unequal = [axis for axis, size in zip(other, places, strict=True) if sizes.get(axis, size) != size]
    every = [*common, *own, *rest]
    if along in other or unequal or sorted(every) != sorted(result):
        raise EinopsError(f"the axes of {pattern!r} do not agree in names or lengths: {shape}, {places}")
    sizes.update(zip(other, places, strict=True))
    return (
        tuple(mine.index(axis) for axis in [*common, along, *rest]),
        len(common),
        tuple(other.index(axis) for axis in [*common, *own]),
        tuple(sizes[axis] for axis in every),
        tuple(every.index(axis) for axis in result),
    )


def sum(pattern: str, x: Any, **lengths: int) -> Tensor:
    """Sum over the axes that are not on the right of the pattern."""
    return reduce(x, pattern, "sum", **lengths)


def mean(pattern: str, x: Any, **lengths: int) -> Tensor:
    """Mean over the axes that are not on the right of the pattern."""
    return reduce(x, pattern, "mean", **lengths)


def max(pattern: str, x: Any, **lengths: int) -> Tensor:
    """Largest element over the axes that are not on the right of the pattern."""
    return reduce(x, pattern, "max", **lengths)


def min(pattern: str, x: Any, **lengths: int) -> Tensor:
    """Smallest element over the axes that are not on the right of the pattern."""
    return reduce(x, pattern, "min", **lengths)


def prod(pattern: str, x: Any, **lengths: int) -> Tensor:
    """Product over the axes that are not on the right of the pattern."""
    return reduce(x, pattern, "prod", **lengths)


def any(pattern: str, x: Any, **lengths: int) -> Tensor:
    """Whether an element is true over the axes that are not on the right of the pattern."""
    return reduce(x, pattern, "any", **lengths)


def all(pattern: str, x: Any, **lengths: int) -> Tensor:
    """Whether every element is true over the axes that are not on the right of the pattern."""
    return reduce(x, pattern, "all", **lengths)


def _folded(
    function: Callable[[Any, Any], Any], pattern: str, tensors: Sequence[Any], lengths: dict[str, int]
) -> Tensor:
    laid, full, final = _laid_out(pattern, tensors, lengths)
    result = laid[0]
    for other in laid[1:]:
        result = function(result, other)
    return _finished(result, full, final)


def _laid_out(pattern: str, tensors: Sequence[Any], lengths: dict[str, int]) -> Any:
    """The operands with one dimension per axis of the result, numbers as they are."""
    shapes = tuple([tuple(x.shape) if isinstance(x, Tensor) else () for x in tensors])
    steps, full, final = _plan(pattern, shapes, tuple(lengths.items()))
    laid = []
    for i in range(len(tensors)):
        first, order, ones = steps[i]
        x = tensors[i]
        laid.append(ops.transpose(x.reshape(first), order).reshape(ones) if isinstance(x, Tensor) and first else x)
    return laid, full, final


def _finished(result: Tensor, full: tuple[int, ...], final: tuple[int, ...]) -> Tensor:
    result = ops.broadcast_to(result, full) if result.shape != full else result
    return result if full == final else result.reshape(final)


@constexpr
def _plan(pattern: str, shapes: tuple[tuple[int, ...], ...], lengths: tuple[tuple[str, int], ...]) -> Any:
    left, arrow, right = pattern.partition("->")
    terms = left.split(",")
    if len(terms) != len(shapes):
        raise EinopsError(f"{pattern!r} names {len(terms)} operands, there are {len(shapes)}")
    sides = [read_side(term) for term in terms]
    result = read_side(right) if arrow else _implied(sides, pattern)
    sizes = dict(lengths)
    expanded, output = [], result
    for side, shape in zip(sides, shapes, strict=True):
        mine, other = without_ellipsis(side, result, len(shape), pattern)
        output = other if (ELLIPSIS,) in side else output
        expanded.append(mine)
    ranks = {len(shape) - len(side) for side, shape in zip(sides, shapes, strict=True) if (ELLIPSIS,) in side}
    axes = [axis for group in output for axis in group]
    known = {axis for side in expanded for group in side for axis in group} | set(sizes)
    unfit = {a for a in known | set(axes) if "#" in a or a.startswith("(") or a == ELLIPSIS}
    if unfit or len(ranks) > 1 or set(axes) - known or known - set(axes):
        raise EinopsError(f"the axes of {pattern!r} do not agree, or it reduces axes, which is not elementwise")
    for last in (False, True):  # what one operand leaves open another one may tell
        for side, shape in zip(expanded, shapes, strict=True):
            for group, length in zip(side, shape, strict=True):
                if last or len([a for a in group if a not in sizes]) < 2:
                    solve(group, length, sizes, pattern, shape)
    steps = []
    for side in expanded:
        mine_axes = [axis for group in side for axis in group]
        order = tuple(mine_axes.index(a) for a in axes if a in mine_axes)
        steps.append((
            tuple(sizes[a] for a in mine_axes), order, tuple(sizes[a] if a in mine_axes else 1 for a in axes),
        ))  # fmt: skip
    final = []
    for group in output:
        number = 1
        for axis in group:
            number *= sizes[axis]
        final.append(number)
    return tuple(steps), tuple(sizes[a] for a in axes), tuple(final)


def _implied(sides: list[list[Axes]], pattern: str) -> list[Axes]:
    """The result of a pattern without `->`: the one operand that has the axes of all others."""
    every = {axis for side in sides for group in side for axis in group}
    full = [side for side in sides if {axis for group in side for axis in group} == every]
    if not full or full.count(full[0]) != len(full):
        raise EinopsError(f"{pattern!r} does not tell the axes of the result; write them behind '->'")
    return full[0]
