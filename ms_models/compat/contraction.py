"""`einsum` as transpositions and one batched matrix product per pair; MindSpore's own has no CPU kernel."""

from __future__ import annotations

from typing import Any

from mindspore import Tensor, ops


def einsum(equation: str, *operands: Any) -> Tensor:
    """Sum of products over named axes, `"bhid,bhjd->bhij"`; letters, spaces and one `...` per operand.

    Raises:
        ValueError: the equation does not fit the operands.
    """
    tensors = list(operands[0]) if len(operands) == 1 and isinstance(operands[0], list | tuple) else list(operands)
    inputs, output = _parse(equation, tensors)
    result, axes = _diagonal(tensors[0], inputs[0])
    for number in range(1, len(tensors)):
        other, other_axes = _diagonal(tensors[number], inputs[number])
        needed = set(output).union(*inputs[number + 1 :])
        result, axes = _contract(result, axes, other, other_axes, needed)
    result, axes = _sum_out(result, axes, set(output))
    return ops.transpose(result, tuple(axes.index(a) for a in output)) if axes != output else result


def _parse(equation: str, tensors: list[Tensor]) -> tuple[list[list[str]], list[str]]:
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(tensors):
        raise ValueError(f"einsum: {equation!r} names {len(terms)} operands but got {len(tensors)}")
    inputs = []
    longest = 0
    for term, tensor in zip(terms, tensors, strict=True):
        extra = tensor.ndim - len(term.replace("...", ""))
        if extra < 0 or (extra > 0 and "..." not in term):
            raise ValueError(f"einsum: {term!r} does not fit an operand with {tensor.ndim} axes")
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


def _diagonal(tensor: Tensor, axes: list[str]) -> tuple[Tensor, list[str]]:
    """Take the diagonal of axes that one operand names twice."""
    for name in dict.fromkeys(axes):
        while axes.count(name) > 1:
            first = axes.index(name)
            second = axes.index(name, first + 1)
            tensor = ops.diagonal(tensor, 0, first, second)
            axes = [a for i, a in enumerate(axes) if i not in (first, second)] + [name]
    return tensor, axes


def _sum_out(tensor: Tensor, axes: list[str], keep: set[str]) -> tuple[Tensor, list[str]]:
    gone = tuple(i for i, a in enumerate(axes) if a not in keep)
    if gone:
        tensor = tensor.sum(gone)
    return tensor, [a for a in axes if a in keep]


def _contract(
    left: Tensor, left_axes: list[str], right: Tensor, right_axes: list[str], needed: set[str]
) -> tuple[Tensor, list[str]]:
    """One pair: axes in both and needed later are the batch, axes in both and not needed are summed over."""
    left, left_axes = _sum_out(left, left_axes, needed | set(right_axes))
    right, right_axes = _sum_out(right, right_axes, needed | set(left_axes))
    sizes = dict(zip(left_axes, left.shape, strict=True))
    for name, size in zip(right_axes, right.shape, strict=True):
        if sizes.get(name, 1) == 1:
            sizes[name] = size
        elif size not in (1, sizes[name]):
            raise ValueError(f"einsum: axis {name!r} has the sizes {sizes[name]} and {size}")
    left = ops.broadcast_to(left, tuple(sizes[a] for a in left_axes))
    right = ops.broadcast_to(right, tuple(sizes[a] for a in right_axes))
    both = [a for a in left_axes if a in right_axes]
    batch, summed = [a for a in both if a in needed], [a for a in both if a not in needed]
    rows = [a for a in left_axes if a not in both]
    columns = [a for a in right_axes if a not in both]

    def arranged(tensor: Tensor, axes: list[str], groups: list[list[str]]) -> Tensor:
        order = tuple(axes.index(a) for group in groups for a in group)
        shape = tuple(_product(sizes[a] for a in group) for group in groups)
        return ops.transpose(tensor, order).reshape(shape) if order else tensor.reshape(shape)

    product = ops.bmm(
        arranged(left, left_axes, [batch, rows, summed]), arranged(right, right_axes, [batch, summed, columns])
    )
    axes = batch + rows + columns
    return product.reshape(tuple(sizes[a] for a in axes)), axes


def _product(numbers: Any) -> int:
    total = 1
    for number in numbers:
        total *= number
    return total
