"""Lengths and offsets that a mask of attention needs, from the input, its padding and the cache."""

from __future__ import annotations

from typing import Any

import mindspore as ms
from mindspore import Tensor, ops

from .caches import Cache
from .mask_functions import ALL_MASK_ATTENTION_FUNCTIONS, find_packed_sequence_indices

_KERNELS = ("flash", "flex", "paged")


def _first(flags: list[bool]) -> int:
    return flags.index(True) if True in flags else 0


def full_layer(cache: Any) -> int:
    """Number of the first layer that sees everything."""
    if not isinstance(cache, Cache):
        return 0
    return _first([not s and not d for s, d in zip(cache.is_sliding, cache.is_dummy, strict=True)])


def sliding_layer(cache: Any) -> int:
    return _first(list(getattr(cache, "is_sliding", [])))


def _preprocess_mask_arguments(
    config: Any,
    inputs_embeds: Tensor,
    attention_mask: Tensor | None,
    cache: Any,
    position_ids: Tensor | None,
    layer_idx: int | None,
    encoder_hidden_states: Tensor | None = None,
) -> tuple[Any, ...]:
    """Whether the mask is ready as it is, the mask, numbers of packed sequences, and lengths and offsets."""
    if isinstance(attention_mask, Tensor) and attention_mask.ndim == 4:
        return True, attention_mask, None, None, None, None, None
    attention = config._attn_implementation
    if attention not in ALL_MASK_ATTENTION_FUNCTIONS:
        if str(attention).startswith(_KERNELS):
            raise NotImplementedError(f"{attention!r} is a CUDA kernel; use the attention 'eager' or 'sdpa'")
        return True, None, None, None, None, None, None  # an attention of the user's, which masks itself
    if attention_mask is not None and attention_mask.ndim == 2:
        attention_mask = attention_mask.astype(ms.bool_)
    q_length = inputs_embeds.shape[1]
    q_offset = kv_offset = 0
    if cache is not None:
        q_offset = cache.get_query_offset(layer_idx)
        kv_length, kv_offset = cache.get_mask_sizes(q_length, layer_idx)
    elif attention_mask is not None:
        kv_length = attention_mask.shape[-1]
    else:
        kv_length = q_length if encoder_hidden_states is None else encoder_hidden_states.shape[1]
    packed = None
    if position_ids is not None and attention_mask is None and cache is None:
        packed = find_packed_sequence_indices(per_row(position_ids, inputs_embeds.shape[0]))
    return False, attention_mask, packed, q_length, kv_length, q_offset, kv_offset


def per_row(position_ids: Tensor, batch_size: int) -> Tensor:
    return ops.broadcast_to(position_ids, (batch_size, position_ids.shape[-1]))


def stated_size(config: Any, name: str) -> int:
    size = getattr(config, name, None)
    if size is None:
        raise ValueError(f"the configuration has no {name}, or it is None")
    return size
