"""Attention that looks both ways, and the mask of its padding."""

from __future__ import annotations

import mindspore as ms
from mindspore import Tensor, ops

from ms_models.layers.attention import LOWEST, multiply, multiply_transposed
from ms_models.layers.dropout import Dropout


def padding_bias(attention_mask: Tensor) -> Tensor:
    """What is added to attention scores: 0 at tokens, the lowest fp32 at padding.

    Args:
        attention_mask: `[B, T]`, nonzero for tokens, 0 for padding anywhere.

    Returns:
        `[B, 1, 1, T]` fp32. A row of padding only attends evenly to all of it.
    """
    return ((attention_mask == 0).astype(ms.float32) * LOWEST).expand_dims(1).expand_dims(1)


def encoder_attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, dropout: Dropout, seeds: Tensor) -> Tensor:
    """`dropout(softmax(q k^T / sqrt(D) + bias)) v` per head.

    Args:
        q: `[B, S, H, D]`.
        k: `[B, T, H, D]`.
        v: `[B, T, H, D]`.
        bias: `[B, 1, 1, T]`, see `padding_bias`; None for none.
        dropout: of the weights.
        seeds: of the samples, `[B]`.

    Returns:
        `[B, S, H * D]`. The softmax runs in fp32.
    """
    batch, queries, heads, width = q.shape
    q_BHSD = (q * width**-0.5).transpose(0, 2, 1, 3)
    scores = multiply_transposed(q_BHSD, k.transpose(0, 2, 1, 3)).astype(ms.float32)
    if bias is not None:
        scores = scores + bias
    weights = dropout(ops.softmax(scores, -1), seeds).astype(v.dtype)
    y_BHSD = multiply(weights, v.transpose(0, 2, 1, 3))
    return y_BHSD.transpose(0, 2, 1, 3).reshape(batch, queries, heads * width)
