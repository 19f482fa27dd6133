"""Clipping of gradients: as values, and in the `.grad` of parameters where `backward.backward_of` leaves them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import mindspore as ms
from mindspore import Parameter, Tensor, ops

from .recorded import Recorded, is_on


def total_norm(grads: Sequence[Tensor], norm_type: float = 2.0) -> Tensor:
    """Norm of all gradients taken as one vector, float32."""
    if not grads:
        return Tensor(0.0, ms.float32)
    if norm_type == float("inf"):
        return ops.stack([ops.abs(g).max() for g in grads]).max()
    if norm_type == 2.0:
        norms = ops.stack([ops.sqrt((g.astype(ms.float32) * g.astype(ms.float32)).sum()) for g in grads])
        return ops.sqrt((norms * norms).sum())
    norms = ops.stack(
        [ops.pow(ops.pow(ops.abs(g.astype(ms.float32)), norm_type).sum(), 1.0 / norm_type) for g in grads]
    )
    return ops.pow(ops.pow(norms, norm_type).sum(), 1.0 / norm_type)


def clip_grad_norm(
    grads: Sequence[Tensor], max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False
) -> tuple[tuple[Tensor, ...], Tensor]:
    """Scale gradients so that their total norm is at most `max_norm`.

    The factor is `min(1, max_norm / (norm + 1e-6))`, as in `torch.nn.utils.clip_grad_norm_`.

    Returns:
        The scaled gradients and the norm before scaling.

    Raises:
        RuntimeError: the norm is not finite and `error_if_nonfinite` is set.
    """
    return _clipped(grads, total_norm(grads, float(norm_type)), max_norm, norm_type, error_if_nonfinite)


def _clipped(
    grads: Sequence[Tensor], norm: Tensor, max_norm: float, norm_type: float, error_if_nonfinite: bool
) -> tuple[tuple[Tensor, ...], Tensor]:
    if error_if_nonfinite and not bool(ops.isfinite(norm)):
        raise RuntimeError(
            f"the total norm of order {norm_type} of the gradients is not finite, so it cannot be clipped"
        )
    factor = ops.clamp(max_norm / (norm + 1e-6), max=1.0)
    return tuple(g * factor.astype(g.dtype) for g in grads), norm


def clip_grad_norm_(
    parameters: Iterable[Parameter] | Parameter,
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
) -> Tensor:
    """`clip_grad_norm` on the `.grad` of parameters; returns the norm before scaling."""
    holders = _with_gradient(parameters)
    if is_on() and not error_if_nonfinite and all(getattr(p, "combine_shards", None) is None for p in holders):
        return _clip_recorded(holders, max_norm, float(norm_type))
    norm = _norm_over_ranks(holders, float(norm_type))
    clipped, norm = _clipped([p.grad for p in holders], norm, max_norm, norm_type, error_if_nonfinite)
    for parameter, gradient in zip(holders, clipped, strict=True):
        parameter.grad = gradient
    return norm


_clippings = Recorded()


def _clip_recorded(holders: Sequence[Parameter], max_norm: float, norm_type: float) -> Tensor:
    """`clip_grad_norm_` as one graph."""

    def clip(*grads: Tensor) -> tuple[Tensor, ...]:
        clipped, norm = clip_grad_norm(grads, max_norm, norm_type)
        return (norm, *clipped)

    norm, *clipped = _clippings((max_norm, norm_type), clip, [p.grad for p in holders])
    for parameter, gradient in zip(holders, clipped, strict=True):
        parameter.grad = gradient
    return norm


def clip_grad_value_(parameters: Iterable[Parameter] | Parameter, clip_value: float) -> None:
    """`clip_grad_value` on the `.grad` of parameters."""
    holders = _with_gradient(parameters)
    for parameter, gradient in zip(holders, clip_grad_value([p.grad for p in holders], clip_value), strict=True):
        parameter.grad = gradient


def _norm_over_ranks(holders: Sequence[Parameter], norm_type: float) -> Tensor:
    """Norm of all gradients; of a parameter that tensor parallel ranks share out, every rank's slice counts once."""
    groups: dict[Any, list[Tensor]] = {}
    for parameter in holders:
        groups.setdefault(getattr(parameter, "combine_shards", None), []).append(parameter.grad)
    if set(groups) <= {None}:
        return total_norm([p.grad for p in holders], norm_type)
    largest = norm_type == float("inf")
    parts = []
    for combine, grads in groups.items():
        norm = total_norm(grads, norm_type)
        power = norm if largest else ops.pow(norm, norm_type)
        parts.append(power if combine is None else combine(power, largest))
    together = ops.stack(parts)
    return together.max() if largest else ops.pow(together.sum(), 1.0 / norm_type)


def _with_gradient(parameters: Iterable[Parameter] | Parameter) -> list[Parameter]:
    several = [parameters] if isinstance(parameters, Tensor) else parameters
    return [p for p in several if getattr(p, "grad", None) is not None]


def clip_grad_value(grads: Sequence[Tensor], clip_value: float) -> tuple[Tensor, ...]:
    """Cut every element to [-clip_value, clip_value]."""
    return tuple(ops.clamp(g, -clip_value, clip_value) for g in grads)
