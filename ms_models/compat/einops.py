"""The functions of einops with its patterns and errors, on tensors and numpy arrays; they compile under `ms.jit`."""

from __future__ import annotations

import string
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from mindspore import Tensor, ops
from mindspore.ops import constexpr

from . import contraction
from .cumulative import prod
from .einops_patterns import ELLIPSIS, EinopsError, is_axis_name, read_side, steps
from .ordering import amax, amin

__all__ = ["EinopsError", "asnumpy", "einsum", "pack", "parse_shape", "rearrange", "reduce", "repeat", "unpack"]

Reduction = str | Callable[[Any, tuple[int, ...]], Any]
_REDUCTIONS = ("min", "max", "sum", "mean", "prod", "any", "all")


def rearrange(tensor: Any, pattern: str, **axes_lengths: int) -> Any:
    """Other order, splits and merges of dimensions: `rearrange(x, "b (h d) n -> b h n d", h=4)`.

    A list of tensors is stacked along a new first dimension.

    Raises:
        EinopsError: the pattern is wrong or does not fit the tensor.
    """
    return _transformed(tensor, pattern, "rearrange", "", axes_lengths)


def repeat(tensor: Any, pattern: str, **axes_lengths: int) -> Any:
    """`rearrange` with new axes along which the tensor is repeated: `repeat(x, "n d -> b n d", b=2)`.

    Raises:
        EinopsError: the pattern is wrong or does not fit the tensor.
    """
    return _transformed(tensor, pattern, "repeat", "", axes_lengths)


def reduce(tensor: Any, pattern: str, reduction: Reduction, **axes_lengths: int) -> Any:
    """`rearrange` that reduces the axes which are not on the right: `reduce(x, "b n d -> b d", "mean")`.

    Args:
        tensor: a tensor, an array, or a list of either.
        pattern: `left -> right`.
        reduction: `min`, `max`, `sum`, `mean`, `prod`, `any`, `all`, or a function of the tensor and the axes.
        axes_lengths: lengths that the shape does not tell.

    Raises:
        EinopsError: the pattern is wrong or does not fit the tensor, or the reduction is unknown.
    """
    return _transformed(tensor, pattern, "reduce", reduction, axes_lengths)


def einsum(*tensors_and_pattern: Any) -> Any:
    """Sum of products over named axes: `einsum(q, k, "b i d, b j d -> b i j")`.

    Raises:
        EinopsError: the result has an axis that no operand has, or a group in brackets.
        ValueError: there is no pattern after the tensors, or it has no `->`.
    """
    pattern = tensors_and_pattern[-1]
    if len(tensors_and_pattern) < 2 or not isinstance(pattern, str):
        raise ValueError("einsum takes tensors and, last, the pattern")
    equation = _equation(pattern)
    if isinstance(tensors_and_pattern[0], Tensor):
        return contraction.einsum(equation, *tensors_and_pattern[:-1])
    return np.einsum(equation, *tensors_and_pattern[:-1])


def pack(tensors: Sequence[Any], pattern: str) -> tuple[Any, list[tuple[int, ...]]]:
    """One tensor from several whose dimensions at `*` are flattened and joined, and what these dimensions were.

    Raises:
        EinopsError: the pattern is wrong or does not fit a tensor.
    """
    flat, shapes = [], []
    before = 0
    for tensor in tensors:
        shape = tensor.shape
        before, after = _around_star(pattern, len(shape), False)
        end = len(shape) - after
        middle = shape[before:end]
        shapes.append(middle)
        flat.append(tensor.reshape((*shape[:before], _count(middle), *shape[end:])))
    if isinstance(flat[0], Tensor):
        return ops.cat(flat, before), shapes
    return np.concatenate(flat, before), shapes


def unpack(tensor: Any, packed_shapes: Sequence[Sequence[int]], pattern: str) -> list[Any]:
    """The tensors that `pack` joined; one shape may contain a -1.

    Raises:
        EinopsError: the pattern is wrong, or the shapes do not fill the dimension.
    """
    shape = tensor.shape
    before, _ = _around_star(pattern, len(shape), True)
    sizes = _parts(pattern, shape[before], tuple([tuple(s) for s in packed_shapes]))
    result, begin = [], 0
    for i in range(len(packed_shapes)):
        piece = tensor[(slice(None),) * before + (slice(begin, begin + sizes[i][0]),)]
        result.append(piece.reshape((*shape[:before], *sizes[i][1], *shape[before + 1 :])))
        begin = begin + sizes[i][0]
    return result


def parse_shape(x: Any, pattern: str) -> dict[str, int]:
    """Lengths by name of axis, `parse_shape(x, "b _ h w")`; `_` leaves a dimension out.

    Raises:
        RuntimeError: the pattern does not fit the shape.
    """
    return dict(_named_lengths(pattern, tuple(x.shape)))


def asnumpy(tensor: Any) -> np.ndarray[Any, Any]:
    """The tensor as a numpy array."""
    return tensor.asnumpy() if isinstance(tensor, Tensor) else np.asarray(tensor)


_steps = constexpr(steps)


def _transformed(tensor: Any, pattern: str, operation: str, reduction: Reduction, lengths: dict[str, int]) -> Any:
    if isinstance(tensor, list):
        tensor = ops.stack(tensor) if isinstance(tensor[0], Tensor) else np.stack(tensor)
    first, order, reduced, ones, full, final = _steps(pattern, operation, tuple(tensor.shape), tuple(lengths.items()))
    if not isinstance(tensor, Tensor):
        return _array(tensor, (first, order, reduced, ones, full, final), reduction)
    if tensor.shape != first:
        tensor = tensor.reshape(first)
    if order != tuple(range(len(order))):
        tensor = ops.transpose(tensor, order)
    if operation == "reduce":
        tensor = _reduced(tensor, reduction, reduced)
    if tensor.shape != ones:
        tensor = tensor.reshape(ones)
    if ones != full:
        tensor = ops.broadcast_to(tensor, full)
    return tensor if full == final else tensor.reshape(final)


def _reduced(tensor: Tensor, reduction: Reduction, axes: tuple[int, ...]) -> Tensor:
    if not isinstance(reduction, str):
        return reduction(tensor, axes) if axes else tensor
    _check_reduction(reduction)
    if not axes:
        return tensor
    if reduction == "mean":
        if not tensor.is_floating_point():
            raise NotImplementedError("the mean of integers is not defined; convert the tensor first")
        return tensor.mean(axes)
    if reduction == "sum":
        return tensor.sum(axes)
    if reduction in ("min", "max"):
        return amin(tensor, axes) if reduction == "min" else amax(tensor, axes)
    for _ in axes:  # the reduced axes are the last ones
        tensor = _along_last(tensor, reduction)
    return tensor


def _along_last(tensor: Tensor, reduction: str) -> Tensor:
    if reduction == "prod":
        return prod(tensor, tensor.ndim - 1)
    return ops.any(tensor, tensor.ndim - 1) if reduction == "any" else ops.all(tensor, tensor.ndim - 1)


def _array(array: Any, numbers: tuple[tuple[int, ...], ...], reduction: Reduction) -> Any:
    first, order, reduced, ones, full, final = numbers
    array = array.reshape(first).transpose(order)
    if reduced:
        if not isinstance(reduction, str):
            array = reduction(array, reduced)
        else:
            _check_reduction(reduction)
            array = getattr(array, reduction)(axis=reduced)
    return np.broadcast_to(array.reshape(ones), full).reshape(final)


@constexpr
def _check_reduction(reduction: str) -> None:
    if reduction not in _REDUCTIONS:
        raise EinopsError(f"the reduction {reduction!r} is none of {', '.join(_REDUCTIONS)}")


@constexpr
def _equation(pattern: str) -> str:
    """The pattern with single letters."""
    left, arrow, right = pattern.partition("->")
    if not arrow:
        raise ValueError(f"{pattern!r} has no '->'")
    letters: dict[str, str] = {}
    terms: list[str] = []
    for side in left.split(","):
        term = ""
        for group in read_side(side, underscore=True, repeated=True):
            if group != (ELLIPSIS,) and _single(group, pattern) not in letters:
                letters[group[0]] = _letter(len(letters))
            term += ELLIPSIS if group == (ELLIPSIS,) else letters[group[0]]
        terms.append(term)
    result = ""
    for group in read_side(right, underscore=True):
        if group != (ELLIPSIS,) and _single(group, pattern) not in letters:
            raise EinopsError(f"the axis {group[0]!r} stands on the right of {pattern!r} only")
        result += ELLIPSIS if group == (ELLIPSIS,) else letters[group[0]]
    return f"{','.join(terms)}->{result}"


def _letter(number: int) -> str:
    if number == len(string.ascii_letters):
        raise EinopsError("einsum has more axes than letters")
    return string.ascii_letters[number]


def _single(group: tuple[str, ...], pattern: str) -> str:
    if len(group) != 1 or "#" in group[0] or "." in group[0]:
        raise EinopsError(f"{pattern!r}: einsum takes names of axes, no numbers and no brackets")
    return group[0]


@constexpr
def _around_star(pattern: str, rank: int, packed: bool) -> tuple[int, int]:
    """Numbers of axes before and after `*`; of a packed tensor `*` is one dimension, else any number of them."""
    axes = pattern.split()
    if len(set(axes)) != len(axes) or axes.count("*") != 1 or not all(a == "*" or is_axis_name(a) for a in axes):
        raise EinopsError(f"{pattern!r} needs different names of axes and one '*'")
    if rank < len(axes) - 1 or (packed and rank != len(axes)):
        raise EinopsError(f"{pattern!r} does not fit a tensor with {rank} dimensions")
    return axes.index("*"), len(axes) - axes.index("*") - 1


@constexpr
def _parts(pattern: str, length: int, shapes: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """Length and shape of every part."""
    known = [0 if -1 in shape else _product(shape) for shape in shapes]
    unknown = [i for i, shape in enumerate(shapes) if -1 in shape]
    rest = length - sum(known)
    if len(unknown) > 1 or rest < 0 or (not unknown and rest):
        raise EinopsError(f"{pattern!r}: a dimension of length {length} cannot be split into {list(shapes)}")
    if unknown:
        inner = _product([n for n in shapes[unknown[0]] if n != -1])
        if shapes[unknown[0]].count(-1) > 1 or (rest % inner if inner else True):
            raise EinopsError(f"{pattern!r}: {rest} elements do not fill {shapes[unknown[0]]}")
        known[unknown[0]] = rest
        filled = tuple(rest // inner if n == -1 else n for n in shapes[unknown[0]])
        shapes = tuple(filled if i == unknown[0] else shape for i, shape in enumerate(shapes))
    return tuple(zip(known, shapes, strict=True))


@constexpr
def _named_lengths(pattern: str, shape: tuple[int, ...]) -> tuple[tuple[str, int], ...]:
    groups = read_side(pattern, underscore=True)
    if any(len(group) > 1 for group in groups):
        raise RuntimeError(f"{pattern!r} has brackets, which name no dimension of {shape}")
    dots = groups.index((ELLIPSIS,)) if (ELLIPSIS,) in groups else len(groups)
    extra = len(shape) - len(groups) + ((ELLIPSIS,) in groups)
    if extra < 0 or (extra and (ELLIPSIS,) not in groups):
        raise RuntimeError(f"{pattern!r} does not fit the shape {shape}")
    groups = [*groups[:dots], *[("_",)] * extra, *groups[dots + 1 :]]
    result = []
    for group, length in zip(groups, shape, strict=True):
        stated = 1 if not group else int(group[0].split("#")[0]) if "#" in group[0] else length
        if length != stated:
            raise RuntimeError(f"a dimension of {shape} is {length}, {pattern!r} says {stated}")
        if group and "#" not in group[0] and group[0] != "_":
            result.append((group[0], length))
    return tuple(result)


def _product(numbers: Sequence[int]) -> int:
    total = 1
    for number in numbers:
        total *= number
    return total


_count = constexpr(_product)
