"""`einsum` as transpositions and one batched matrix product per pair; MindSpore's own has no CPU kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mindspore import Tensor, ops
from mindspore.ops import constexpr

from .products import bmm


def einsum(equation: str, *operands: Any) -> Tensor:
    """Sum of products over named axes, `"bhid,bhjd->bhij"`; letters, spaces and one `...` per operand.

    Raises:
        ValueError: the equation does not fit the operands.
    """
    tensors = operands if isinstance(operands[0], Tensor) else operands[0]
    shapes = []
    for tensor in tensors:
        shapes.append(tensor.shape)
    diagonals, pairs, summed, order = _plan(equation, tuple(shapes))
    result = _take_diagonals(tensors[0], diagonals[0])
    for i in range(len(pairs)):
        left, right, shape = pairs[i]
        other = _take_diagonals(tensors[i + 1], diagonals[i + 1])
        result, other = _arranged(result, left), _arranged(other, right)
        # Without an axis to sum over it is a product of elements, whose types may differ.
        result = (result * other if other.shape[1] == 1 else bmm(result, other)).reshape(shape)
    if summed:
        result = result.sum(summed)
    return ops.transpose(result, order) if order else result


def _take_diagonals(tensor: Tensor, axes: tuple[tuple[int, int], ...]) -> Tensor:
    for first, second in axes:
        tensor = ops.diagonal(tensor, 0, first, second)
    return tensor


def _arranged(tensor: Tensor, steps: tuple[tuple[int, ...], ...]) -> Tensor:
    """Sum out, broadcast, transpose and reshape for the matrix product."""
    summed, full, order, shape = steps
    if summed:
        tensor = tensor.sum(summed)
    if full:
        tensor = ops.transpose(ops.broadcast_to(tensor, full), order)
    return tensor.reshape(shape)


@constexpr
def _plan(equation: str, shapes: tuple[tuple[int, ...], ...]) -> tuple[Any, ...]:
    """All steps as numbers; in a graph this runs once, at compile time."""
    inputs, output = _parse(equation, shapes)
    diagonals, named = [], []
    for axes, dims in zip(inputs, shapes, strict=True):
        taken, axes, shape = _diagonals(axes, list(dims))
        diagonals.append(taken)
        named.append((axes, shape))
    axes, shape = named[0]
    pairs = []
    for number, (other_axes, other_shape) in enumerate(named[1:], 1):
        needed = set(output).union(*(a for a, _ in named[number + 1 :]))
        left, right, axes, shape = _pair((axes, shape), (other_axes, other_shape), needed)
        pairs.append((left, right, tuple(shape)))
    summed = tuple(i for i, a in enumerate(axes) if a not in output)
    axes = [a for a in axes if a in output]
    order = tuple(axes.index(a) for a in output) if axes != output else ()
    return tuple(diagonals), tuple(pairs), summed, order


def _parse(equation: str, shapes: Sequence[Sequence[int]]) -> tuple[list[list[str]], list[str]]:
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(shapes):
        raise ValueError(f"einsum: {equation!r} names {len(terms)} operands but got {len(shapes)}")
    inputs = []
    longest = 0
    for term, shape in zip(terms, shapes, strict=True):
        extra = len(shape) - len(term.replace("...", ""))
        if extra < 0 or (extra > 0 and "..." not in term):
            raise ValueError(f"einsum: {term!r} does not fit an operand with {len(shape)} axes")
        if "..." in term:
            longest = max(longest, extra)
        inputs.append(_axes(term, extra))
    if arrow:
        output = _axes(right, longest)
    else:
        letters = left.replace(",", "").replace("...", "")
        output = [f".{i}" for i in range(longest, 0, -1)] if "..." in left else []
        output += sorted(a for a in set(letters) if letters.count(a) == 1)
    known = {a for axes in inputs for a in axes}
    if not set(output) <= known or len(set(output)) != len(output):
        raise ValueError(f"einsum: the result of {equation!r} names an unknown axis or one twice")
    return inputs, output


def _axes(term: str, extra: int) -> list[str]:
    """`a...b` as names of axes; the axes of an ellipsis are numbered from the right, for broadcasting."""
    before, dots, after = term.partition("...")
    return [*before, *([f".{i}" for i in range(extra, 0, -1)] if dots else []), *after]


def _diagonals(axes: list[str], shape: list[int]) -> tuple[tuple[tuple[int, int], ...], list[str], list[int]]:
    """Axes that one operand names twice, to be replaced by their diagonal, which comes last."""
    taken = []
    for name in dict.fromkeys(axes):
        while axes.count(name) > 1:
            first = axes.index(name)
            second = axes.index(name, first + 1)
            taken.append((first, second))
            kept = [i for i in range(len(axes)) if i not in (first, second)]
            axes, shape = [axes[i] for i in kept] + [name], [shape[i] for i in kept] + [shape[first]]
    return tuple(taken), axes, shape


_Named = tuple[list[str], list[int]]


def _pair(left: _Named, right: _Named, needed: set[str]) -> tuple[Any, Any, list[str], list[int]]:
    """One product: axes in both and needed later are the batch, axes in both and not needed are summed over."""
    alone = [needed | set(right[0]), needed | set(left[0])]
    sums, kept = [], []
    for (axes, shape), keep in zip((left, right), alone, strict=True):
        sums.append(tuple(i for i, a in enumerate(axes) if a not in keep))
        kept.append([(a, n) for a, n in zip(axes, shape, strict=True) if a in keep])
    sizes: dict[str, int] = {}
    for name, size in kept[0] + kept[1]:
        if sizes.get(name, 1) == 1:
            sizes[name] = size
        elif size not in (1, sizes[name]):
            raise ValueError(f"einsum: axis {name!r} has the sizes {sizes[name]} and {size}")
    left_axes, right_axes = [a for a, _ in kept[0]], [a for a, _ in kept[1]]
    both = [a for a in left_axes if a in right_axes]
    batch, inner = [a for a in both if a in needed], [a for a in both if a not in needed]
    rows, columns = [a for a in left_axes if a not in both], [a for a in right_axes if a not in both]
    steps = []
    for summed, axes, groups in (
        (sums[0], left_axes, (batch, rows, inner)),
        (sums[1], right_axes, (batch, inner, columns)),
    ):
        full = tuple(sizes[a] for a in axes)
        order = tuple(axes.index(a) for group in groups for a in group)
        steps.append((summed, full, order, tuple(_product(sizes[a] for a in group) for group in groups)))
    result = batch + rows + columns
    return steps[0], steps[1], result, [sizes[a] for a in result]


def _product(numbers: Any) -> int:
    total = 1
    for number in numbers:
        total *= number
    return total
