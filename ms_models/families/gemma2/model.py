"""Gemma 2: norms before and after attention and feed-forward, soft caps, a sliding window in every other layer.

Suffixes as in the Llama it is built from.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mindspore import Tensor, nn, ops

from mappings.families import Family
from ms_models.families.gemma2.config import Gemma2Config
from ms_models.families.gemma2.sharding import Gemma2Sharding
from ms_models.families.llama.model import LlamaAttention, LlamaForCausalLM, LlamaMLP, LlamaModel
from ms_models.layers.attention import grouped_attention, soft_cap
from ms_models.layers.norm import OffsetRMSNorm
from ms_models.parallel.mesh import Mesh


class Gemma2Attention(LlamaAttention):
    """Attention with a scale of its own and capped scores."""

    def __init__(self, config: Gemma2Config, sharding: Gemma2Sharding) -> None:
        super().__init__(config, sharding)
        self.scale = config.attention_scale
        self.cap = config.attention_cap

    def attend(self, q_BSHD: Tensor, k_BTKD: Tensor, v_BTKD: Tensor, bias: Tensor) -> Tensor:
        return grouped_attention(q_BSHD, k_BTKD, v_BTKD, bias, self.scale, self.cap)


class Gemma2MLP(LlamaMLP):
    """Gated feed-forward: `down(gelu(gate(x)) * up(x))`, GELU by the hyperbolic tangent."""

    def construct(self, x_BSM: Tensor) -> Tensor:
        x_BSM = self.enter(x_BSM)
        return self.down_proj(ops.gelu(self.gate_proj(x_BSM), approximate="tanh") * self.up_proj(x_BSM))


class Gemma2DecoderLayer(nn.Cell):
    """Attention and feed-forward, each between two norms and beside a residual connection."""

    def __init__(self, config: Gemma2Config, sharding: Gemma2Sharding) -> None:
        super().__init__()
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.input_layernorm = OffsetRMSNorm(hidden, eps)
        self.self_attn = Gemma2Attention(config, sharding)
        self.post_attention_layernorm = OffsetRMSNorm(hidden, eps)
        self.pre_feedforward_layernorm = OffsetRMSNorm(hidden, eps)
        self.mlp = Gemma2MLP(config, sharding)
        self.post_feedforward_layernorm = OffsetRMSNorm(hidden, eps)

    def construct(
        self, x_BSM: Tensor, rotary: tuple[Tensor, Tensor], bias: Tensor, past: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        y_BSM, present = self.self_attn(self.input_layernorm(x_BSM), rotary, bias, past)
        x_BSM = x_BSM + self.post_attention_layernorm(y_BSM)
        y_BSM = self.mlp(self.pre_feedforward_layernorm(x_BSM))
        return x_BSM + self.post_feedforward_layernorm(y_BSM), present


class Gemma2Model(LlamaModel):
    """Scaled embedding, decoder layers, final norm."""

    layer_class = Gemma2DecoderLayer

    def __init__(self, config: Gemma2Config, sharding: Gemma2Sharding) -> None:
        super().__init__(config, sharding)
        self.norm = OffsetRMSNorm(config.hidden_size, config.rms_norm_eps)


class Gemma2ForCausalLM(LlamaForCausalLM):
    """Gemma 2 with its output head, whose logits are capped; see `CausalLM` for what it offers."""

    sharding = Gemma2Sharding
    model_class = Gemma2Model

    def __init__(self, config: Gemma2Config, raw: Mapping[str, Any], family: Family, mesh: Mesh) -> None:
        super().__init__(config, raw, family, mesh)
        self.cap = config.logit_cap

    @staticmethod
    def read_config(raw: Mapping[str, Any], family: Family) -> Gemma2Config:
        """Typed settings from the contents of `config.json`."""
        return Gemma2Config.read(raw, family)

    def head(self, x_BSM: Tensor) -> Tensor:
        """Logits `[B, S, V]` of this rank's vocabulary rows."""
        logits = super().head(x_BSM)
        return logits if self.cap is None else soft_cap(logits, self.cap)
