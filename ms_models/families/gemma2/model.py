"""Gemma 2: norms before and after attention and feed-forward, soft caps, a sliding window in every other layer.

Suffixes as in the Llama it is built from.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mindspore as ms
from mindspore import Tensor, nn

from mappings.families import Family
from ms_models.families.causal_lm import CausalLM
from ms_models.families.decoder import Decoder
from ms_models.families.gemma2.config import Gemma2Config
from ms_models.families.gemma2.sharding import Gemma2Sharding
from ms_models.families.llama.model import LlamaAttention, LlamaMLP
from ms_models.families.sharding import Sharding
from ms_models.layers.activation import activation
from ms_models.layers.attention import soft_cap
from ms_models.parallel.place import Place


class Gemma2Attention(LlamaAttention):
    """Attention with a scale of its own and capped scores."""

    def make_core(self, config: Gemma2Config, sharding: Sharding) -> nn.Cell:
        return sharding.core(config.attention_scale, config.attention_cap)


class Gemma2MLP(LlamaMLP):
    """Gated feed-forward: `down(gelu(gate(x)) * up(x))`, GELU by the hyperbolic tangent."""

    def __init__(self, config: Gemma2Config, sharding: Sharding, layer: int) -> None:
        super().__init__(config, sharding, layer)
        self.act = activation("hidden_activation", "gelu_pytorch_tanh")

    def construct(self, x_BSM: Tensor) -> Tensor:
        x_BSM = self.enter(x_BSM)
        return self.down_proj(self.act(self.gate_proj(x_BSM)) * self.up_proj(x_BSM))


class Gemma2DecoderLayer(nn.Cell):
    """Attention and feed-forward, each between two norms and beside a residual connection."""

    attention_class: type[Any] = Gemma2Attention

    def __init__(self, config: Gemma2Config, sharding: Sharding, layer: int) -> None:
        super().__init__()
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.input_layernorm = sharding.offset_norm(hidden, eps)
        self.self_attn = self.attention_class(config, sharding, layer)
        self.post_attention_layernorm = sharding.offset_norm(hidden, eps)
        self.pre_feedforward_layernorm = sharding.offset_norm(hidden, eps)
        self.mlp = Gemma2MLP(config, sharding, layer)
        self.post_feedforward_layernorm = sharding.offset_norm(hidden, eps)

    def construct(
        self, x_BSM: Tensor, rotary: tuple[Tensor, Tensor], bias: Tensor, past: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        y_BSM, present = self.self_attn(self.input_layernorm(x_BSM), rotary, bias, past)
        x_BSM = x_BSM + self.post_attention_layernorm(y_BSM)
        y_BSM = self.mlp(self.pre_feedforward_layernorm(x_BSM))
        return x_BSM + self.post_feedforward_layernorm(y_BSM), present


class Gemma2Model(Decoder):
    """Scaled embedding, decoder layers, final norm."""

    layer_class = Gemma2DecoderLayer

    def make_embedding(self, config: Gemma2Config, sharding: Sharding) -> nn.Cell:
        return sharding.embedding(config.hidden_size, config.pad_token_id, scale=config.hidden_size**0.5)

    def make_norm(self, config: Gemma2Config, sharding: Sharding) -> nn.Cell:
        return sharding.offset_norm(config.hidden_size, config.rms_norm_eps)


class Gemma2ForCausalLM(CausalLM):
    """Gemma 2 with its output head, whose logits are capped; see `CausalLM` for what it offers."""

    sharding = Gemma2Sharding
    model_class = Gemma2Model

    def __init__(self, config: Gemma2Config, place: Place) -> None:
        super().__init__(config, place)
        self.cap = config.logit_cap

    @staticmethod
    def read_config(raw: Mapping[str, Any], family: Family) -> Gemma2Config:
        """Typed settings from the contents of `config.json`."""
        return Gemma2Config.read(raw, family)

    def head(self, x_BSM: Tensor) -> Tensor:
        """Logits `[B, S, V]` of this rank's vocabulary rows."""
        logits = super().head(x_BSM)
        return logits if self.cap is None else soft_cap(logits.astype(ms.float32), self.cap)
