"""The layers, encoder, decoder and whole of `torch.nn.Transformer`, with torch's parameter names and initial values."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import mindspore as ms
from mindspore import Tensor, nn, ops

from . import init
from .containers import ModuleList
from .layers import Dropout, Linear
from .module import Module
from .multihead_attention import MultiheadAttention
from .normalization import LayerNorm

Activation = str | Callable[[Tensor], Tensor]


def _activation(given: Activation) -> Any:
    if not isinstance(given, str):
        return given
    if given not in ("relu", "gelu"):
        raise RuntimeError(f"activation should be relu/gelu, not {given}")
    return ops.relu if given == "relu" else _gelu


def _gelu(x: Tensor) -> Tensor:
    return ops.gelu(x, approximate="none")


class _Layer(Module):
    """What both layers share: self-attention, the feed-forward network and their norms."""

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: Activation = "relu",
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        attention = {"dropout": dropout, "bias": bias, "batch_first": batch_first, "dtype": dtype}
        norm = {"eps": layer_norm_eps, "bias": bias, "dtype": dtype}
        self.self_attn = MultiheadAttention(d_model, nhead, **attention)
        self._add_attention(d_model, nhead, attention)
        self.linear1 = Linear(d_model, dim_feedforward, bias=bias, dtype=dtype)
        self.dropout = Dropout(dropout)
        self.linear2 = Linear(dim_feedforward, d_model, bias=bias, dtype=dtype)
        self.norm_first = norm_first
        self.norm1, self.norm2 = LayerNorm(d_model, **norm), LayerNorm(d_model, **norm)
        self._add_norm(d_model, norm)
        self.dropout1, self.dropout2 = Dropout(dropout), Dropout(dropout)
        self.activation = _activation(activation)

    def _add_attention(self, d_model: int, nhead: int, options: dict[str, Any]) -> None:
        """Another attention, after the first one in the order of the parameters."""

    def _add_norm(self, d_model: int, options: dict[str, Any]) -> None:
        """Another norm, after the first two."""

    def _attend(self, x: Tensor, mask: Tensor | None, padding: Tensor | None, is_causal: bool) -> Tensor:
        return self.dropout1(self.self_attn(x, x, x, padding, False, mask, True, is_causal)[0])

    def _network(self, x: Tensor) -> Tensor:
        return self.linear2(self.dropout(self.activation(self.linear1(x))))


class TransformerEncoderLayer(_Layer):
    """Self-attention and feed-forward network, each with dropout, residual and norm."""

    def construct(
        self,
        src: Tensor,
        src_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        x = src
        if self.norm_first:
            x = x + self._attend(self.norm1(x), src_mask, src_key_padding_mask, is_causal)
            return x + self.dropout2(self._network(self.norm2(x)))
        x = self.norm1(x + self._attend(x, src_mask, src_key_padding_mask, is_causal))
        return self.norm2(x + self.dropout2(self._network(x)))


class TransformerDecoderLayer(_Layer):
    """Self-attention, attention to the encoder's output and feed-forward network, each with dropout, residual, norm."""

    def _add_attention(self, d_model: int, nhead: int, options: dict[str, Any]) -> None:
        self.multihead_attn = MultiheadAttention(d_model, nhead, **options)

    def _add_norm(self, d_model: int, options: dict[str, Any]) -> None:
        self.norm3 = LayerNorm(d_model, **options)
        self.dropout3 = Dropout(self.dropout.p)

    def construct(
        self,
        tgt: Tensor,
        memory: Tensor,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
    ) -> Tensor:
        x = tgt
        first = (tgt_mask, tgt_key_padding_mask, tgt_is_causal)
        second = (memory, memory_mask, memory_key_padding_mask, memory_is_causal)
        if self.norm_first:
            x = x + self._attend(self.norm1(x), *first)
            x = x + self._attend_to(self.norm2(x), *second)
            return x + self.dropout3(self._network(self.norm3(x)))
        x = self.norm1(x + self._attend(x, *first))
        x = self.norm2(x + self._attend_to(x, *second))
        return self.norm3(x + self.dropout3(self._network(x)))

    def _attend_to(
        self, x: Tensor, memory: Tensor, mask: Tensor | None, padding: Tensor | None, is_causal: bool
    ) -> Tensor:
        return self.dropout2(self.multihead_attn(x, memory, memory, padding, False, mask, True, is_causal)[0])


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
            src = layer(src, src_mask=mask, src_key_padding_mask=src_key_padding_mask, is_causal=is_causal is True)
        return src if self.norm is None else self.norm(src)


class TransformerDecoder(Module):
    """A stack of equal layers, all starting from the weights of `decoder_layer`."""

    def __init__(self, decoder_layer: nn.Cell, num_layers: int, norm: nn.Cell | None = None) -> None:
        super().__init__()
        self.layers = ModuleList([copy.deepcopy(decoder_layer) for _ in range(num_layers)])
        self.num_layers = num_layers
        self.norm = norm

    def construct(
        self,
        tgt: Tensor,
        memory: Tensor,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        tgt_is_causal: bool | None = None,
        memory_is_causal: bool = False,
    ) -> Tensor:
        for layer in self.layers:
            tgt = layer(
                tgt,
                memory,
                tgt_mask=tgt_mask,
                memory_mask=memory_mask,
                tgt_key_padding_mask=tgt_key_padding_mask,
                memory_key_padding_mask=memory_key_padding_mask,
                tgt_is_causal=tgt_is_causal is True,
                memory_is_causal=memory_is_causal,
            )
        return tgt if self.norm is None else self.norm(tgt)


class Transformer(Module):
    """Encoder and decoder with a last norm each (Vaswani et al., 2017); matrices are drawn by `xavier_uniform_`."""

    def __init__(
        self,
        d_model: int = 512,
        nhead: int = 8,
        num_encoder_layers: int = 6,
        num_decoder_layers: int = 6,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: Activation = "relu",
        custom_encoder: nn.Cell | None = None,
        custom_decoder: nn.Cell | None = None,
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        widths = (d_model, nhead, dim_feedforward, dropout)
        layer = (*widths, activation, layer_norm_eps, batch_first, norm_first, bias, dtype)
        if custom_encoder is None:
            norm = LayerNorm(d_model, eps=layer_norm_eps, bias=bias, dtype=dtype)
            custom_encoder = TransformerEncoder(TransformerEncoderLayer(*layer), num_encoder_layers, norm)
        if custom_decoder is None:
            norm = LayerNorm(d_model, eps=layer_norm_eps, bias=bias, dtype=dtype)
            custom_decoder = TransformerDecoder(TransformerDecoderLayer(*layer), num_decoder_layers, norm)
        self.encoder, self.decoder = custom_encoder, custom_decoder
        for parameter in self.parameters():
            if parameter.ndim > 1:
                init.xavier_uniform_(parameter)
        self.d_model, self.nhead, self.batch_first = d_model, nhead, batch_first

    def construct(
        self,
        src: Tensor,
        tgt: Tensor,
        src_mask: Tensor | None = None,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        src_is_causal: bool | None = None,
        tgt_is_causal: bool | None = None,
        memory_is_causal: bool = False,
    ) -> Tensor:
        """`src` `[S, N, E]` and `tgt` `[T, N, E]` (`[N, S, E]` with `batch_first`) to `[T, N, E]`."""
        batch = 0 if self.batch_first else 1
        if src.ndim == 3 and src.shape[batch] != tgt.shape[batch]:
            raise RuntimeError("the batch number of src and tgt must be equal")
        if src.shape[-1] != self.d_model or tgt.shape[-1] != self.d_model:
            raise RuntimeError("the feature number of src and tgt must be equal to d_model")
        memory = self.encoder(src, mask=src_mask, src_key_padding_mask=src_key_padding_mask, is_causal=src_is_causal)
        return self.decoder(
            tgt,
            memory,
            tgt_mask=tgt_mask,
            memory_mask=memory_mask,
            tgt_key_padding_mask=tgt_key_padding_mask,
            memory_key_padding_mask=memory_key_padding_mask,
            tgt_is_causal=tgt_is_causal,
            memory_is_causal=memory_is_causal,
        )

    @staticmethod
    def generate_square_subsequent_mask(sz: int, dtype: Any = None) -> Tensor:
        """`[sz, sz]`: what is added to the scores so that a position sees itself and what is before it."""
        return square_subsequent_mask(sz, dtype)


def square_subsequent_mask(sz: int, dtype: Any = None) -> Tensor:
    """`-inf` above the diagonal, 0 elsewhere, `[sz, sz]`."""
    later = ops.logical_not(ops.tril(ops.ones((sz, sz), dtype=ms.bool_)))
    return ops.zeros((sz, sz), dtype=dtype or ms.float32).masked_fill(later, float("-inf"))
