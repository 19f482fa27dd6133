"""The layers of einops: `Rearrange`, `Reduce`, and `EinMix`, a linear layer described by a pattern."""

from __future__ import annotations

import string
from typing import Any

from mindspore import Parameter, Tensor

from . import contraction, init
from .einops import Reduction, rearrange, reduce
from .einops_patterns import ELLIPSIS, EinopsError, read, read_side
from .module import Module


class Rearrange(Module):
    """`einops.rearrange` as a layer.

    Raises:
        EinopsError: the pattern is wrong.
    """

    def __init__(self, pattern: str, **axes_lengths: int) -> None:
        super().__init__()
        read(pattern, "rearrange", tuple(axes_lengths))
        self.pattern, self.axes_lengths = pattern, axes_lengths

    def construct(self, input: Tensor) -> Tensor:
        return rearrange(input, self.pattern, **self.axes_lengths)


class Reduce(Module):
    """`einops.reduce` as a layer.

    Raises:
        EinopsError: the pattern is wrong.
    """

    def __init__(self, pattern: str, reduction: Reduction, **axes_lengths: int) -> None:
        super().__init__()
        read(pattern, "reduce", tuple(axes_lengths))
        self.pattern, self.reduction, self.axes_lengths = pattern, reduction, axes_lengths

    def construct(self, input: Tensor) -> Tensor:
        return reduce(input, self.pattern, self.reduction, **self.axes_lengths)


class EinMix(Module):
    """Product of the input with `weight` over named axes, plus `bias`, between two rearrangements.

    `EinMix("b n c -> b n d", weight_shape="c d", bias_shape="d", c=3, d=5)` is a linear layer. The weight is drawn from
    U(-sqrt(3 / fan_in), sqrt(3 / fan_in)), the bias from U(-sqrt(1 / fan_in), sqrt(1 / fan_in)).

    Raises:
        EinopsError: the pattern is wrong, or a length is missing or not used.
    """

    def __init__(self, pattern: str, weight_shape: str, bias_shape: str | None = None, **axes_lengths: int) -> None:
        super().__init__()
        parts = pattern.split("->")
        if len(parts) != 2:
            raise EinopsError(f"{pattern!r} needs one '->'")
        left, right, weight = read_side(parts[0]), read_side(parts[1]), read_side(weight_shape)
        _check(pattern, left, right, weight, axes_lengths)
        inside, outside = _flat(left), _flat(right)
        names = {a: string.ascii_letters[i] for i, a in enumerate(dict.fromkeys(inside + outside + _flat(weight)))}
        names[ELLIPSIS] = ELLIPSIS
        terms = ["".join(names[a] for a in axes) for axes in (inside, _flat(weight), outside)]
        self.einsum_pattern = f"{terms[0]},{terms[1]}->{terms[2]}"
        self.pre_rearrange: Rearrange | None = None
        self.post_rearrange: Rearrange | None = None
        if any(len(group) != 1 for group in left):
            lengths = {a: n for a, n in axes_lengths.items() if a in inside}
            self.pre_rearrange = Rearrange(f"{parts[0]}->{' '.join(inside)}", **lengths)
        if any(len(group) != 1 or group == ("(...)",) for group in right):
            self.post_rearrange = Rearrange(f"{' '.join(outside)}->{parts[1]}")
        fan_in = 1
        for axis in _flat(weight):
            fan_in *= 1 if axis in outside else axes_lengths[axis]
        self.weight = _drawn([axes_lengths[a] for a in _flat(weight)], (3 / fan_in) ** 0.5)
        if bias_shape is None:
            self.bias = None
        else:
            shape = _bias_shape(bias_shape, outside, axes_lengths)
            self.bias = _drawn(shape, (1 / fan_in) ** 0.5)

    def construct(self, input: Tensor) -> Tensor:
        if self.pre_rearrange is not None:
            input = self.pre_rearrange(input)
        result = contraction.einsum(self.einsum_pattern, input, self.weight)
        if self.bias is not None:
            result = result + self.bias
        return result if self.post_rearrange is None else self.post_rearrange(result)


def _flat(groups: list[tuple[str, ...]]) -> list[str]:
    return [ELLIPSIS if axis == "(...)" else axis for group in groups for axis in group]


def _check(pattern: str, left: Any, right: Any, weight: Any, lengths: dict[str, int]) -> None:
    inside, outside, weighted = set(_flat(left)), set(_flat(right)), set(_flat(weight))
    if any("#" in axis for axis in inside | outside | weighted):
        raise EinopsError(f"{pattern!r}: EinMix takes no numbers as axes")
    if ELLIPSIS in weighted or any(len(group) != 1 for group in weight):
        raise EinopsError(f"{pattern!r}: the weight needs one name per dimension")
    if (ELLIPSIS in inside) != (ELLIPSIS in outside) or any("(...)" in group for group in left):
        raise EinopsError(f"{pattern!r}: the ellipsis must stand on both sides, on the left without brackets")
    for axes, problem in (
        (outside - inside - weighted, "have no source"),
        (weighted - set(lengths), "of the weight have no length"),
        (set(lengths) - inside - weighted, "have a length and are not used"),
        (weighted - inside - outside, "of the weight are not used"),
    ):
        if axes:
            raise EinopsError(f"{pattern!r}: the axes {' '.join(sorted(axes))} {problem}")


def _bias_shape(bias: str, outside: list[str], lengths: dict[str, int]) -> list[int]:
    """One number per dimension of the product, from the first axis of the bias on if there is an ellipsis."""
    named = set(_flat(read_side(bias)))
    if not named <= set(outside) & set(lengths):
        raise EinopsError(f"the axes of the bias {bias!r} need a length and a place in the result")
    before = outside[: outside.index(ELLIPSIS)] if ELLIPSIS in outside else []
    if named & set(before):
        raise EinopsError(f"the axes of the bias {bias!r} must stand behind the ellipsis")
    return [lengths[a] if a in named else 1 for a in outside if a != ELLIPSIS]


def _drawn(shape: list[int], bound: float) -> Parameter:
    parameter = Parameter(init.empty(tuple(shape), None))
    init.uniform_(parameter, -bound, bound)
    return parameter
