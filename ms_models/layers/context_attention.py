"""Attention over context-parallel ranks: which Cell crosses them in which way."""

from __future__ import annotations

from ms_models.layers.ring_attention import RingAttention
from ms_models.layers.ulysses_attention import UlyssesAttention
from ms_models.parallel.context import RING, ContextPlace


def context_attention(
    place: ContextPlace, scale: float | None = None, cap: float | None = None, *, causal: bool = False
) -> RingAttention | UlyssesAttention:
    """The Cell for a place, called as `grouped_attention` is with this rank's queries, keys and values.

    `causal` allows the ring to leave out what a causal mask hides, see `RingAttention`.
    """
    if place.context == RING:
        return RingAttention(place, scale, cap, causal=causal)
    return UlyssesAttention(place, scale, cap)


__all__ = ["RingAttention", "UlyssesAttention", "context_attention"]
