"""Scaled dot-product attention by MindSpore's fused kernel for Ascend, where its meaning is torch's."""

from __future__ import annotations

import math

import mindspore as ms
from mindspore import Tensor, ops

from .attention import scaled_dot_product_attention as plain_attention
from .device import accelerator_available

_SIZE = 2048
"""Side of the triangle that the kernel takes for every length."""
_FROM_TOP_LEFT = 2
"""The kernel's word (`sparse_mode`) for a triangle whose corner is the first query and the first key."""

_WIDTH_STEP, _MOST_WIDTH, _MOST_HEADS = 16, 512, 256
"""Widths are multiples of the first number up to the second (documentation of `ops.flash_attention_score`)."""


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
    """As the function of the same name in `attention`, fused for half precision without mask or dropout.

    A mask may leave a query nothing to attend to, where torch gives 0 and the kernel promises nothing; so masks,
    dropout and other data types take the plain operations.
    """
    plain = attn_mask is not None or dropout_p != 0.0
    if plain or not _fits(query, key, value, enable_gqa):
        return plain_attention(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    return ops.flash_attention_score(
        query,
        key,
        value,
        query.shape[1],
        # the kernel leaves out what is True
        attn_mask=ops.logical_not(ops.tril(ops.ones((_SIZE, _SIZE), dtype=ms.bool_))) if is_causal else None,
        scalar_value=1 / math.sqrt(query.shape[-1]) if scale is None else float(scale),
        input_layout="BNSD",
        sparse_mode=_FROM_TOP_LEFT if is_causal else 0,
    )


def _fits(query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool) -> bool:
    """Whether the kernel takes these tensors: half precision, `[batch, heads, length, width]`, one width."""
    half = query.dtype in (ms.float16, ms.bfloat16) and query.dtype == key.dtype == value.dtype
    if not (accelerator_available() and half and query.ndim == key.ndim == value.ndim == 4):
        return False
    if key.shape != value.shape or query.shape[0] != key.shape[0] or query.shape[-1] != key.shape[-1]:
        return False
    heads, shared, width = query.shape[1], key.shape[1], query.shape[-1]
    if width % _WIDTH_STEP or width > _MOST_WIDTH or heads > _MOST_HEADS:
        return False
    return heads == shared or (enable_gqa and heads % shared == 0)
