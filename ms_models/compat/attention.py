"""Scaled dot-product attention with all arguments of torch's function."""

from __future__ import annotations

import contextlib
import enum
import math
from typing import Any

import mindspore as ms
from mindspore import Tensor, ops

from .layers import dropout
from .products import matmul

_batch_product = ops.BatchMatMul(transpose_b=True)


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """`softmax(q k^T * scale + mask) v`.

    Args:
        query: `[..., heads, L, E]`.
        key: `[..., heads, S, E]`; with `enable_gqa` it may have fewer heads, a divisor of query's.
        value: `[..., heads, S, Ev]`.
        attn_mask: broadcastable to `[..., L, S]`; bool, True takes part, or float, added to the scores.
        dropout_p: dropout of the attention weights; always applied, so pass 0.0 in evaluation.
        is_causal: position i sees positions 0 .. i, counted from the top left corner also when L and S differ.
        scale: default `1 / sqrt(E)`.
        enable_gqa: repeat key and value heads to query's number.

    Returns:
        `[..., heads, L, Ev]`. A row with nothing to attend to is 0, as in torch since 2.5.
    """
    if is_causal and attn_mask is not None:
        raise RuntimeError("Explicit attn_mask should not be set when is_causal=True")
    if enable_gqa:
        key = ops.repeat_interleave(key, query.shape[-3] // key.shape[-3], -3)
        value = ops.repeat_interleave(value, query.shape[-3] // value.shape[-3], -3)
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = _product_transposed(query * factor, key)
    counts = None
    if is_causal:
        scores = scores + _bias(ops.tril(ops.ones((query.shape[-2], key.shape[-2]), dtype=ms.bool_)), scores)
    elif attn_mask is not None and attn_mask.dtype == ms.bool_:
        # Softmax over nothing but -inf is NaN, and so is its gradient: such a row sees all, and counts for nothing.
        some = attn_mask.any(-1, True)
        scores = scores + _bias(ops.logical_or(attn_mask, ops.logical_not(some)), scores)
        counts = some.astype(scores.dtype)
    elif attn_mask is not None:
        scores = scores + attn_mask
    result = matmul(dropout(ops.softmax(scores, -1), dropout_p), value)
    return result if counts is None else result * counts


def _product_transposed(left: Tensor, right: Tensor) -> Tensor:
    """`left @ right^T` of batches, without a transposed copy where the kernel can do without."""
    if left.ndim < 3 or left.shape[:-2] != right.shape[:-2] or 0 in left.shape or 0 in right.shape:
        return matmul(left, right.swapaxes(-2, -1))
    return _batch_product(left, right)


def _bias(allowed: Tensor, scores: Tensor) -> Tensor:
    """0 where a position is seen, else -inf: it is added, as in torch, which takes one kernel and no gradient."""
    return ops.zeros(allowed.shape, dtype=scores.dtype).masked_fill(ops.logical_not(allowed), float("-inf"))


class SDPBackend(enum.Enum):
    """torch's names for kernels of attention; they only compare."""

    ERROR = -1
    MATH = 0
    FLASH_ATTENTION = 1
    EFFICIENT_ATTENTION = 2
    CUDNN_ATTENTION = 3


def sdpa_kernel(backends: Any = None) -> contextlib.AbstractContextManager[None]:
    """A region that changes nothing: the attention above is written in plain operations."""
    return contextlib.nullcontext()
