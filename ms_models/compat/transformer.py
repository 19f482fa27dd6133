"""MultiheadAttention and the encoder of `torch.nn.Transformer`, with torch's parameter names and initial values."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

from . import init
from .containers import ModuleList
from .layers import Dropout, Linear, dropout
from .module import Module
from .normalization import LayerNorm


class MultiheadAttention(Module):
    """Attention with one fused input projection `[3 embed, embed]` (Vaswani et al., 2017)."""

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        batch_first: bool = False,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        if embed_dim % num_heads:
            raise ValueError(f"embed_dim {embed_dim} must be divisible by num_heads {num_heads}")
        self.embed_dim, self.num_heads, self.head_dim = embed_dim, num_heads, embed_dim // num_heads
        self.dropout, self.batch_first = dropout, batch_first
        self.in_proj_weight = Parameter(init.empty((3 * embed_dim, embed_dim), dtype))
        self.register_parameter("in_proj_bias", Parameter(init.empty((3 * embed_dim,), dtype)) if bias else None)
        self.out_proj = Linear(embed_dim, embed_dim, bias=bias, dtype=dtype)
        init.xavier_uniform_(self.in_proj_weight)
        if bias:
            init.zeros_(self.out_proj.bias)

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
            key: as `query`.
            value: as `query`.
            key_padding_mask: `[N, S]`; True, or what is added to the scores, hides a key.
            need_weights: also return the weights.
            attn_mask: `[L, S]` or `[N * heads, L, S]`; True, or what is added to the scores, hides a pair.
            average_attn_weights: weights as the mean over heads `[N, L, S]` instead of `[N, heads, L, S]`.
            is_causal: a hint that `attn_mask` is causal; the mask itself decides.
        """
        if is_causal and attn_mask is None:
            raise RuntimeError("Need attn_mask if specifying the is_causal hint.")
        batched = query.ndim == 3
        if not batched:
            query, key, value = query.expand_dims(1), key.expand_dims(1), value.expand_dims(1)
            key_padding_mask = None if key_padding_mask is None else key_padding_mask.expand_dims(0)
        elif self.batch_first:
            query, key, value = query.swapaxes(0, 1), key.swapaxes(0, 1), value.swapaxes(0, 1)
        q, k, v = (self._heads(x, number) for number, x in enumerate((query, key, value)))
        scores = ops.matmul(q / math.sqrt(self.head_dim), k.swapaxes(-2, -1))
        if attn_mask is not None:
            full = attn_mask if attn_mask.ndim == 2 else attn_mask.reshape(scores.shape)
            scores = _hidden(scores, full)
        if key_padding_mask is not None:
            scores = _hidden(scores, key_padding_mask.expand_dims(1).expand_dims(1))
        weights = dropout(ops.softmax(scores, -1), self.dropout, self.training)
        joined = ops.matmul(weights, v).transpose(2, 0, 1, 3).reshape(query.shape)
        output = self.out_proj(joined)
        output = output.squeeze(1) if not batched else output.swapaxes(0, 1) if self.batch_first else output
        if not need_weights:
            return output, None
        weights = weights.mean(1) if average_attn_weights else weights
        return output, weights if batched else weights.squeeze(0)

    def _heads(self, x: Tensor, number: int) -> Tensor:
        """`[L, N, E]` to `[N, heads, L, E / heads]` by projection `number` of query, key, value."""
        rows = slice(number * self.embed_dim, (number + 1) * self.embed_dim)
        bias = None if self.in_proj_bias is None else self.in_proj_bias[rows]
        projected = ops.dense(x, self.in_proj_weight[rows], bias)
        return projected.reshape((*x.shape[:2], self.num_heads, self.head_dim)).transpose(1, 2, 0, 3)


def _hidden(scores: Tensor, mask: Tensor) -> Tensor:
    return scores.masked_fill(mask, float("-inf")) if mask.dtype == ms.bool_ else scores + mask


class TransformerEncoderLayer(Module):
    """Self-attention and feed-forward network, each with dropout, residual and norm."""

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Callable[[Tensor], Tensor] = "relu",
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.self_attn = MultiheadAttention(d_model, nhead, dropout, bias, batch_first, dtype)
        self.linear1 = Linear(d_model, dim_feedforward, bias=bias, dtype=dtype)
        self.dropout = Dropout(dropout)
        self.linear2 = Linear(dim_feedforward, d_model, bias=bias, dtype=dtype)
        self.norm_first = norm_first
        self.norm1 = LayerNorm(d_model, eps=layer_norm_eps, bias=bias, dtype=dtype)
        self.norm2 = LayerNorm(d_model, eps=layer_norm_eps, bias=bias, dtype=dtype)
        self.dropout1, self.dropout2 = Dropout(dropout), Dropout(dropout)
        if isinstance(activation, str) and activation not in ("relu", "gelu"):
            raise RuntimeError(f"activation should be relu/gelu, not {activation}")
        self.activation: Any = {"relu": ops.relu, "gelu": _gelu}.get(activation, activation)  # type: ignore[arg-type]

    def construct(
        self,
        src: Tensor,
        src_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        x = src
        if self.norm_first:
            x = x + self._attend(self.norm1(x), src_mask, src_key_padding_mask)
            return x + self._feed(self.norm2(x))
        x = self.norm1(x + self._attend(x, src_mask, src_key_padding_mask))
        return self.norm2(x + self._feed(x))

    def _attend(self, x: Tensor, mask: Tensor | None, padding: Tensor | None) -> Tensor:
        return self.dropout1(self.self_attn(x, x, x, padding, False, mask)[0])

    def _feed(self, x: Tensor) -> Tensor:
        return self.dropout2(self.linear2(self.dropout(self.activation(self.linear1(x)))))


class TransformerEncoder(Module):
    """A stack of equal layers, all starting from the weights of `encoder_layer`."""

    def __init__(self, encoder_layer: nn.Cell, num_layers: int, norm: nn.Cell | None = None) -> None:
        super().__init__()
        self.layers = ModuleList([copy.deepcopy(encoder_layer) for _ in range(num_layers)])
        self.num_layers = num_layers
        self.norm = norm

    def construct(
        self,
        src: Tensor,
        mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool | None = None,
    ) -> Tensor:
        for layer in self.layers:
            src = layer(src, src_mask=mask, src_key_padding_mask=src_key_padding_mask)
        return src if self.norm is None else self.norm(src)


def _gelu(x: Tensor) -> Tensor:
    return ops.gelu(x, approximate="none")
