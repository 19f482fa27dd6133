"""Discrete Fourier transforms with torch's choice of axes; the kernels are those of mindspore.ops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mindspore import Tensor, ops

Axes = int | Sequence[int] | None


def _axes(input: Tensor, s: Sequence[int] | None, dim: Axes) -> tuple[int, ...]:
    """The axes named, else the last ones that `s` has sizes for, else all."""
    if isinstance(dim, int):
        return (dim,)
    if dim is not None:
        return tuple(dim)
    return tuple(range(input.ndim)) if s is None else tuple(range(-len(s), 0))


def _sizes(s: Any) -> Any:
    return (s,) if isinstance(s, int) else s


def _opposite(norm: str | None) -> str:
    """The scaling of the inverse transform, in the words of the forward one."""
    if norm == "ortho":
        return "ortho"
    return "backward" if norm == "forward" else "forward"


def fftn(input: Tensor, s: Any = None, dim: Axes = None, norm: str | None = None) -> Tensor:
    """Transform along several axes."""
    return ops.fftn(input, _sizes(s), _axes(input, _sizes(s), dim), norm)


def ifftn(input: Tensor, s: Any = None, dim: Axes = None, norm: str | None = None) -> Tensor:
    """Inverse transform along several axes."""
    return ops.ifftn(input, _sizes(s), _axes(input, _sizes(s), dim), norm)


def rfftn(input: Tensor, s: Any = None, dim: Axes = None, norm: str | None = None) -> Tensor:
    """Transform of real numbers; the last axis keeps the non-negative frequencies."""
    return ops.rfftn(input, _sizes(s), _axes(input, _sizes(s), dim), norm)


def irfftn(input: Tensor, s: Any = None, dim: Axes = None, norm: str | None = None) -> Tensor:
    """Inverse of `rfftn`: real numbers."""
    return ops.irfftn(input, _sizes(s), _axes(input, _sizes(s), dim), norm)


def hfftn(input: Tensor, s: Any = None, dim: Axes = None, norm: str | None = None) -> Tensor:
    """Transform of a signal with Hermitian symmetry: real numbers."""
    return ops.hfftn(input, _sizes(s), _axes(input, _sizes(s), dim), norm)


def ihfftn(input: Tensor, s: Any = None, dim: Axes = None, norm: str | None = None) -> Tensor:
    """Inverse of `hfftn`: the conjugate of `rfftn` with the opposite scaling."""
    return ops.conj(ops.rfftn(input, _sizes(s), _axes(input, _sizes(s), dim), _opposite(norm)))


def ihfft(input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """Inverse of hfft: the conjugate of rfft with the opposite scaling."""
    return ops.conj(ops.rfft(input, n, dim, _opposite(norm)))
