"""MultiheadAttention with all arguments of torch's class, its parameter names and initial values."""

from __future__ import annotations

import math
from typing import Any

import mindspore as ms
from mindspore import Parameter, Tensor, ops

from . import init
from .layers import Linear, dropout
from .module import Module


class MultiheadAttention(Module):
    """Attention of several heads (Vaswani et al., 2017).

    The projections of query, key and value are one matrix `in_proj_weight` `[3 embed, embed]`, or, when key or value
    have another width, the three matrices `q_proj_weight`, `k_proj_weight` and `v_proj_weight`.

    Args:
        embed_dim: width of the query and of the output, a multiple of `num_heads`.
        num_heads: number of heads.
        dropout: probability with which a weight is zeroed in training.
        bias: biases of the projections.
        add_bias_kv: one more key and value, learned.
        add_zero_attn: one more key and value, zero.
        kdim: width of the key, `embed_dim` if absent.
        vdim: width of the value, `embed_dim` if absent.
        batch_first: batches are `[N, L, E]`, not `[L, N, E]`.
        dtype: data type of the parameters.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        if embed_dim <= 0 or num_heads <= 0:
            raise ValueError(f"embed_dim {embed_dim} and num_heads {num_heads} must be greater than 0")
        if embed_dim % num_heads:
            raise AssertionError("embed_dim must be divisible by num_heads")
        self.embed_dim, self.num_heads, self.head_dim = embed_dim, num_heads, embed_dim // num_heads
        self.kdim = embed_dim if kdim is None else kdim
        self.vdim = embed_dim if vdim is None else vdim
        self._qkv_same_embed_dim = self.kdim == self.vdim == embed_dim
        self.dropout, self.batch_first, self.add_zero_attn = dropout, batch_first, add_zero_attn

        widths = (embed_dim, self.kdim, self.vdim)
        for name, width in zip(("q_proj_weight", "k_proj_weight", "v_proj_weight"), widths, strict=True):
            self.register_parameter(name, self._weight(not self._qkv_same_embed_dim, (embed_dim, width), dtype))
        fused = (3 * embed_dim, embed_dim)
        self.register_parameter("in_proj_weight", self._weight(self._qkv_same_embed_dim, fused, dtype))
        self.register_parameter("in_proj_bias", self._weight(bias, (3 * embed_dim,), dtype))
        self.out_proj = Linear(embed_dim, embed_dim, bias=bias, dtype=dtype)
        self.register_parameter("bias_k", self._weight(add_bias_kv, (1, 1, embed_dim), dtype))
        self.register_parameter("bias_v", self._weight(add_bias_kv, (1, 1, embed_dim), dtype))
        self._reset_parameters()

    @staticmethod
    def _weight(present: bool, shape: tuple[int, ...], dtype: Any) -> Parameter | None:
        return Parameter(init.empty(shape, dtype)) if present else None

    def _reset_parameters(self) -> None:
        for matrix in (self.in_proj_weight, self.q_proj_weight, self.k_proj_weight, self.v_proj_weight):
            if matrix is not None:
                init.xavier_uniform_(matrix)
        if self.in_proj_bias is not None:
            init.zeros_(self.in_proj_bias)
            init.zeros_(self.out_proj.bias)
        if self.bias_k is not None:
            init.xavier_normal_(self.bias_k)
            init.xavier_normal_(self.bias_v)

    def construct(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Attention of `query` `[L, N, E]` to `key` and `value` `[S, N, E]`, or `[N, L, E]` with `batch_first`.

        Args:
            query: unbatched `[L, E]` as well.
            key: as `query`, width `kdim`.
            value: as `query`, width `vdim`.
            key_padding_mask: `[N, S]`; True, or what is added to the scores, hides a key.
            need_weights: also return the weights.
            attn_mask: `[L, S]` or `[N * heads, L, S]`; True, or what is added to the scores, hides a pair.
            average_attn_weights: weights as the mean over heads `[N, L, S]` instead of `[N, heads, L, S]`.
            is_causal: `attn_mask` is causal. As in torch, a causal mask then takes its place when neither padding nor
                weights are asked for.
        """
        if is_causal and attn_mask is None:
            raise RuntimeError("Need attn_mask if specifying the is_causal hint.")
        batched = query.ndim == 3
        if not batched:
            query, key, value = query.expand_dims(1), key.expand_dims(1), value.expand_dims(1)
            key_padding_mask = None if key_padding_mask is None else key_padding_mask.expand_dims(0)
        elif self.batch_first:
            query, key, value = query.swapaxes(0, 1), key.swapaxes(0, 1), value.swapaxes(0, 1)
        q, k, v = self._projected(query, key, value)
        mask = self._mask(attn_mask, key_padding_mask, q, k)
        if self.bias_k is not None:
            one = (1, query.shape[1], self.embed_dim)
            k, v = ops.cat([k, self.bias_k.broadcast_to(one)], 0), ops.cat([v, self.bias_v.broadcast_to(one)], 0)
        q, k, v = self._heads(q), self._heads(k), self._heads(v)
        if self.add_zero_attn:
            zero = ops.zeros((*k.shape[:2], 1, self.head_dim), dtype=k.dtype)
            k, v = ops.cat([k, zero], 2), ops.cat([v, zero], 2)
        scores = ops.matmul(q / math.sqrt(self.head_dim), k.swapaxes(-2, -1))
        if is_causal and key_padding_mask is None and not need_weights:
            later = ops.logical_not(ops.tril(ops.ones(scores.shape[2:], dtype=ms.bool_)))
            mask = ops.zeros(scores.shape[2:], dtype=q.dtype).masked_fill(later, float("-inf"))
        elif mask is not None and scores.shape[-1] > key.shape[0]:  # what was added here is never hidden
            added = ops.zeros((*mask.shape[:-1], scores.shape[-1] - key.shape[0]), dtype=mask.dtype)
            mask = ops.cat([mask, added], -1)
        weights = self._softmax(scores, mask, need_weights)
        weights = dropout(weights, self.dropout, self.training)
        joined = ops.matmul(weights, v).transpose(2, 0, 1, 3).reshape(query.shape)
        output = self.out_proj(joined)
        output = output.squeeze(1) if not batched else output.swapaxes(0, 1) if self.batch_first else output
        if not need_weights:
            return output, None
        weights = weights.mean(1) if average_attn_weights else weights
        return output, weights if batched else weights.squeeze(0)

    def _projected(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Query `[L, N, E]`, key and value `[S, N, E]` after their projections."""
        e = self.embed_dim
        results = []
        for i, x in enumerate((query, key, value)):
            if self._qkv_same_embed_dim:
                matrix = self.in_proj_weight[i * e : (i + 1) * e]
            else:
                matrix = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)[i]
            bias = None if self.in_proj_bias is None else self.in_proj_bias[i * e : (i + 1) * e]
            results.append(ops.dense(x, matrix, bias))
        return results[0], results[1], results[2]

    def _mask(self, attn_mask: Tensor | None, padding: Tensor | None, q: Tensor, k: Tensor) -> Tensor | None:
        """Both masks as one that is added to the scores, `[N or 1, heads or 1, L or 1, S]`."""
        length, count, size = q.shape[0], q.shape[1], k.shape[0]
        mask = None
        if attn_mask is not None:
            if attn_mask.ndim == 2 and attn_mask.shape == (length, size):
                mask = _added(attn_mask, q.dtype).reshape((1, 1, length, size))
            elif attn_mask.ndim == 3 and attn_mask.shape == (count * self.num_heads, length, size):
                mask = _added(attn_mask, q.dtype).reshape((count, self.num_heads, length, size))
            else:
                raise RuntimeError(f"attn_mask of shape {attn_mask.shape} fits neither {(length, size)} nor its batch")
        if padding is not None:
            if padding.shape != (count, size):
                raise AssertionError(f"expecting key_padding_mask shape of {(count, size)}, but got {padding.shape}")
            hidden = _added(padding, q.dtype).reshape((count, 1, 1, size))
            mask = hidden if mask is None else mask + hidden
        return mask

    def _heads(self, x: Tensor) -> Tensor:
        """`[L, N, E]` to `[N, heads, L, E / heads]`."""
        return x.reshape((*x.shape[:2], self.num_heads, self.head_dim)).transpose(1, 2, 0, 3)

    def _softmax(self, scores: Tensor, mask: Tensor | None, need_weights: bool) -> Tensor:
        """Weights; a query that may see nothing has NaN, or zeros where torch takes its fused kernel."""
        if mask is None:
            return ops.softmax(scores, -1)
        # the kernel of softmax spoils other rows when one has nothing but -inf
        empty = (mask == float("-inf")).all(-1, True)
        weights = ops.softmax(scores + mask.masked_fill(empty, 0.0), -1)
        return weights.masked_fill(empty, float("nan") if need_weights else 0.0)


def _added(mask: Tensor, dtype: Any) -> Tensor:
    """A mask that hides as one that is added."""
    if mask.dtype == ms.bool_:
        return ops.zeros(mask.shape, dtype=dtype).masked_fill(mask, float("-inf"))
    if not mask.is_floating_point():
        raise AssertionError("only bool and floating types of masks are supported")
    return mask.astype(dtype)
