"""GLM-4: norms before and behind attention and feed-forward; neighbouring dimensions of half a head are rotated.

Suffixes as in the Llama it is built from.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mindspore import Tensor, nn

from mappings.families import Family
from ms_models.families.config import DecoderConfig
from ms_models.families.glm4.sharding import Glm4Sharding
from ms_models.families.llama.model import LlamaAttention, LlamaForCausalLM, LlamaModel
from ms_models.families.phi3.model import Phi3MLP
from ms_models.layers.rotary import RopeConfig, rotate_pairs

# What transformers takes for fields that config.json leaves out.
DEFAULTS = {
    "eos_token_id": [151329, 151336, 151338],
    "max_position_embeddings": 131072,
    "pad_token_id": 151329,
    "partial_rotary_factor": 0.5,
    "rms_norm_eps": 1.5625e-7,
}


class Glm4Attention(LlamaAttention):
    """Attention that rotates neighbouring dimensions."""

    def turn(self, x_BSHD: Tensor, rotary: tuple[Tensor, ...]) -> Tensor:
        return rotate_pairs(x_BSHD, rotary[0], rotary[1])


class Glm4DecoderLayer(nn.Cell):
    """Attention and feed-forward, each between two norms and beside a residual connection."""

    def __init__(self, config: DecoderConfig, sharding: Glm4Sharding, layer: int) -> None:
        super().__init__()
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.input_layernorm = sharding.norm(hidden, eps)
        self.self_attn = Glm4Attention(config, sharding, layer)
        self.post_self_attn_layernorm = sharding.norm(hidden, eps)
        self.post_attention_layernorm = sharding.norm(hidden, eps)
        self.mlp = Phi3MLP(config, sharding, layer)
        self.post_mlp_layernorm = sharding.norm(hidden, eps)

    def construct(
        self, x_BSM: Tensor, rotary: tuple[Tensor, ...], bias: Tensor, past: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        y_BSM, present = self.self_attn(self.input_layernorm(x_BSM), rotary, bias, past)
        x_BSM = x_BSM + self.post_self_attn_layernorm(y_BSM)
        y_BSM = self.mlp(self.post_attention_layernorm(x_BSM))
        return x_BSM + self.post_mlp_layernorm(y_BSM), present


class Glm4Model(LlamaModel):
    """Embedding, decoder layers, final norm."""

    layer_class: type[Any] = Glm4DecoderLayer


class Glm4ForCausalLM(LlamaForCausalLM):
    """GLM-4 with its output head; see `CausalLM` for what it offers."""

    sharding = Glm4Sharding
    model_class = Glm4Model

    @staticmethod
    def read_config(raw: Mapping[str, Any], family: Family) -> DecoderConfig:
        """Typed settings from the contents of `config.json`."""
        config = {**DEFAULTS, **raw}
        rope = RopeConfig.from_json(config, partial=True)
        return DecoderConfig.from_json(config, family, qkv_bias=family.flag(raw, "attention_bias"), rope=rope)
