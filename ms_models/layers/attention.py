"""Causal attention with grouped queries, and its mask."""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Tensor, ops

from ms_models.layers.softmax import softmax

LOWEST = float(np.finfo(np.float32).min)  # finite: a row with nothing to see becomes uniform instead of NaN

# Half the time of ops.matmul with a transposed operand, under ms.jit on CPU.
multiply, multiply_transposed = ops.BatchMatMul(), ops.BatchMatMul(transpose_b=True)


def causal_bias(queries: int, keys: int, attention_mask: Tensor | None, positions: Tensor | None = None) -> Tensor:
    """What is added to attention scores: 0 where a query may look, the lowest fp32 elsewhere.

    Args:
        queries: number of query positions, the last ones of the keys.
        keys: number of key positions.
        attention_mask: `[B, keys]`, nonzero for tokens, 0 for padding on either side; None keeps all. Tokens with
            different numbers (1, 1, 1, 2, 2 ...: documents that share a row) do not see each other.
        positions: `[queries]`, where the queries are among the keys; None for the last ones.

    Returns:
        `[B, 1, queries, keys]` fp32; B is 1 without a mask.
    """
    places = ops.arange(keys)
    here = places[keys - queries :] if positions is None else positions
    allowed = (places <= here.expand_dims(-1)).expand_dims(0)
    if attention_mask is not None:
        # A query that is padding looks at every token, as it always did: nobody reads what it finds.
        mask = attention_mask.astype(ms.int32)
        own = mask[:, keys - queries :] if positions is None else ops.gather(mask, positions, 1)
        of_key, of_query = mask.expand_dims(1), own.expand_dims(-1)
        visible = ops.logical_and(of_key != 0, ops.logical_or(of_key == of_query, of_query == 0))
        allowed = ops.logical_and(allowed, visible)
    return ops.where(allowed, 0.0, LOWEST).astype(ms.float32).expand_dims(1)


def document_positions(attention_mask: Tensor) -> Tensor:
    """Positions `[B, S]` int32 that begin anew with every document that shares a row with others.

    Args:
        attention_mask: `[B, S]`; the documents of a row are numbered 1, 2, 3 ..., see `causal_bias`. Masks of 0 and 1
            give 0, 1, 2 ... under padding, too.
    """
    mask = attention_mask.astype(ms.int32)
    places = ops.arange(mask.shape[1]).astype(ms.int32)
    before = ops.concat((mask[:, :1], mask[:, :-1]), 1)
    begins = ops.logical_and(mask > 1, mask != before)
    start = ops.cummax(ops.where(begins, places, 0).astype(ms.float32), 1)[0]  # exact below 2 ** 24
    return places - start.astype(ms.int32)


def within_window(bias: Tensor, window: int, positions: Tensor | None = None) -> Tensor:
    """A causal bias under which a query sees itself and the `window - 1` positions before it.

    Positions are counted along the sequence, padding included, as transformers counts them.

    Args:
        bias: `[B, 1, queries, keys]`, see `causal_bias`.
        window: at least 1.
        positions: see `causal_bias`.
    """
    queries, keys = bias.shape[-2], bias.shape[-1]
    places = ops.arange(keys)
    positions = places[keys - queries :] if positions is None else positions
    near = places > positions.expand_dims(-1) - window
    return ops.where(near, bias, LOWEST)


def soft_cap(x: Tensor, cap: float) -> Tensor:
    """`cap * tanh(x / cap)`: nearly `x` where that is small, never beyond `cap`.

    The tangent comes from that of half the argument: MindSpore's CPU kernel is off by 1e-4 at 5.
    """
    half = ops.tanh(x * (0.5 / cap))
    return half * (2.0 * cap) / (1.0 + half * half)


def grouped_attention(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor, scale: float | None = None, cap: float | None = None
) -> Tensor:
    """`softmax(q k^T * scale + bias) v`, where each of K key heads serves `H / K` consecutive query heads.

    The queries of one key head are laid end to end, so keys and values are not repeated.

    Args:
        q: `[B, S, H, D]`.
        k: `[B, T, K, D]`.
        v: `[B, T, K, E]`; E may differ from D.
        bias: `[B, 1, S, T]`, see `causal_bias`.
        scale: of the scores; `1 / sqrt(D)` where not given.
        cap: soft cap of the scaled scores, see `soft_cap`; None for none.

    Returns:
        `[B, S, H * E]`. The softmax runs in fp32.
    """
    batch, queries, heads, width = q.shape
    keys, groups = k.shape[1], k.shape[2]
    each = heads // groups
    q = (
        (q * (width**-0.5 if scale is None else scale))
        .reshape(batch, queries, groups, each, width)
        .transpose(0, 2, 3, 1, 4)
    )
    q = q.reshape(batch, groups, each * queries, width)
    scores = multiply_transposed(q, k.transpose(0, 2, 1, 3)).astype(ms.float32)
    if cap is not None:
        scores = soft_cap(scores, cap)
    scores = scores.reshape(batch, groups, each, queries, keys) + bias.expand_dims(1)
    weights = softmax(scores).astype(v.dtype).reshape(batch, groups, each * queries, keys)
    y = multiply(weights, v.transpose(0, 2, 1, 3)).reshape(batch, groups, each, queries, v.shape[-1])
    return y.transpose(0, 3, 1, 2, 4).reshape(batch, queries, heads * v.shape[-1])
