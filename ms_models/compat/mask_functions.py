"""Patterns of attention masks and the tensors that are made of them, with transformers' rules.

A mask function answers for positions `(batch, head, query, key)`, all of them tensors that broadcast against each
other; True takes part. What comes out is for one of two kinds of attention: `sdpa` gets a boolean mask, or
None where the kernel's own `is_causal` says the same; `eager` gets numbers to add, 0 or the smallest of the type.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, ops

from .dtypes import finfo
from .graph import in_graph

MaskFunction = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def and_masks(*mask_functions: MaskFunction) -> MaskFunction:
    """True where all are."""

    def both(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        result = mask_functions[0](b, h, q, k)
        for function in mask_functions[1:]:
            result = ops.logical_and(result, function(b, h, q, k))
        return result

    return both


def or_masks(*mask_functions: MaskFunction) -> MaskFunction:
    """True where any is."""

    def either(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        result = mask_functions[0](b, h, q, k)
        for function in mask_functions[1:]:
            result = ops.logical_or(result, function(b, h, q, k))
        return result

    return either


def causal_mask_function(batch_idx: Tensor, head_idx: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
    """Keys up to the query's position."""
    return kv_idx <= q_idx


def bidirectional_mask_function(batch_idx: Tensor, head_idx: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
    """Every key."""
    return q_idx >= 0


def sliding_window_overlay(sliding_window: int) -> MaskFunction:
    """Keys less than `sliding_window` positions back."""
    return lambda b, h, q, k: k > q - sliding_window


def sliding_window_causal_mask_function(sliding_window: int) -> MaskFunction:
    """The query's position and those before it in the window."""
    return and_masks(sliding_window_overlay(sliding_window), causal_mask_function)


def sliding_window_bidirectional_mask_function(sliding_window: int) -> MaskFunction:
    """Keys at most `sliding_window` positions away."""
    return lambda b, h, q, k: ops.abs(q - k) <= sliding_window


def chunked_causal_mask_function(chunk_size: int, left_padding: Tensor) -> MaskFunction:
    """Keys up to the query's position in the same chunk; chunks begin behind the padding."""

    def same_chunk(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        start = left_padding[b]
        return (k - start) // chunk_size == (q - start) // chunk_size

    return and_masks(same_chunk, causal_mask_function)


def blockwise_overlay(block_sequence_ids: Tensor) -> MaskFunction:
    """Keys of the same block; -1 belongs to none."""

    def same_block(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        query = block_sequence_ids[b, q]
        return ops.logical_and(query == block_sequence_ids[b, k], query >= 0)

    return same_block


def padding_mask_function(padding_mask: Tensor) -> MaskFunction:
    """Keys that are no padding."""
    return lambda b, h, q, k: padding_mask[b, k]


def packed_sequence_mask_function(packed_sequence_mask: Tensor) -> MaskFunction:
    """Keys of the same one of several sequences in a row."""
    return lambda b, h, q, k: packed_sequence_mask[b, q] == packed_sequence_mask[b, k]


def in_own_positions(function: MaskFunction, position_ids: Tensor) -> MaskFunction:
    """A mask function about positions within each of several sequences in a row."""
    return lambda b, h, q, k: function(b, h, position_ids[b, q], position_ids[b, k])


def maybe_pad_block_sequence_ids(
    block_sequence_ids: Tensor, attention_mask: Tensor | None, kv_length: int, kv_offset: int
) -> Tensor:
    """Blocks for every key; keys behind the last one belong to none."""
    return _padded(block_sequence_ids, kv_length + kv_offset, -1)


def _padded(values: Tensor, length: int, value: int) -> Tensor:
    missing = length - values.shape[-1]
    if missing <= 0:
        return values
    return ops.cat((values, ops.full((values.shape[0], missing), value, dtype=ms.int64).astype(values.dtype)), -1)


def find_packed_sequence_indices(position_ids: Tensor) -> Tensor | None:
    """Numbers of the sequences in a row: a new one begins where positions do not go up by one; None for only one.

    Inside `ms.jit` the values are not known, so there the numbers always come.
    """
    if in_graph():  # @jit.cond: True
        steps = ops.cat((ops.ones_like(position_ids[:, :1]), position_ids[:, 1:] - position_ids[:, :-1]), -1)
        return (steps != 1).astype(ms.int32).cumsum(-1)
    positions = position_ids.asnumpy()
    steps = np.diff(positions, axis=-1, prepend=positions[:, :1] - 1)
    numbers = np.cumsum(steps != 1, axis=-1)
    return Tensor(numbers.astype(np.int64)) if numbers[:, -1].any() else None


def sdpa_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int = 0,
    kv_offset: int = 0,
    mask_function: MaskFunction = causal_mask_function,
    attention_mask: Tensor | None = None,
    local_size: int | None = None,
    allow_is_causal_skip: bool = True,
    allow_is_bidirectional_skip: bool = False,
    **kwargs: Any,
) -> Tensor | None:
    """Boolean `[batch, 1, queries, keys]`, or None where the kernel needs none."""
    padding = None if attention_mask is None else _padded(attention_mask, kv_length + kv_offset, 0)
    local = local_size is not None and kv_length >= local_size
    if allow_is_causal_skip and not local and _causal_says_it(padding, q_length, kv_length, q_offset, kv_offset):
        return None
    if allow_is_bidirectional_skip and not local and (padding is None or _all(padding)):
        return None
    if padding is not None:
        mask_function = and_masks(mask_function, padding_mask_function(padding))
    batch, head = ops.arange(batch_size)[:, None, None, None], ops.arange(1)[None, :, None, None]
    queries = (ops.arange(q_length) + q_offset)[None, None, :, None]
    keys = (ops.arange(kv_length) + kv_offset)[None, None, None, :]
    mask = mask_function(batch, head, queries, keys).astype(ms.bool_)
    return ops.broadcast_to(mask, (batch_size, mask.shape[1], q_length, kv_length))


def _all(padding: Tensor) -> bool:
    """Whether everything takes part; inside `ms.jit`, where values are not known, that is never certain."""
    if in_graph():  # @jit.cond: True
        return False
    return bool(padding.asnumpy().all())


def _causal_says_it(padding: Tensor | None, q_length: int, kv_length: int, q_offset: int, kv_offset: int) -> bool:
    """Whether `is_causal` of the kernel, off for a single query, means the causal mask with this padding."""
    if padding is not None and in_graph():  # @jit.cond: True
        return False
    allowed = None if padding is None else padding.asnumpy().astype(bool)
    if allowed is not None and allowed.shape[-1] > kv_length:
        allowed = allowed[:, kv_offset : kv_offset + kv_length]
    if (q_length == 1 or kv_length == q_length) and (allowed is None or allowed.all()):
        return True
    # an empty cache with room for more: what is not used yet is padding at the end
    begins = q_offset == 0 and (allowed is None or (allowed[:, :q_length].all() and not allowed[:, q_length:].any()))
    return bool(begins)


def eager_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int = 0,
    kv_offset: int = 0,
    mask_function: MaskFunction = causal_mask_function,
    attention_mask: Tensor | None = None,
    dtype: Any = ms.float32,
    allow_is_bidirectional_skip: bool = False,
    **kwargs: Any,
) -> Tensor | None:
    """Numbers to add to the scores `[batch, 1, queries, keys]`; None only for a bidirectional mask without padding."""
    kwargs["allow_is_causal_skip"] = False
    mask = sdpa_mask(
        batch_size, q_length, kv_length, q_offset, kv_offset, mask_function, attention_mask,
        allow_is_bidirectional_skip=allow_is_bidirectional_skip, **kwargs,
    )  # fmt: skip
    if mask is None:
        return None
    return ops.where(mask, ops.zeros(mask.shape, dtype), ops.full(mask.shape, finfo(dtype).min, dtype=dtype))


ALL_MASK_ATTENTION_FUNCTIONS: dict[str, Callable[..., Tensor | None]] = {"sdpa": sdpa_mask, "eager": eager_mask}
"""Attention of the configuration -> what makes its masks; more can be added."""
