"""Qwen3 (dense): Llama with a norm on every head's queries and keys, and without sliding windows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mindspore import Tensor

from mappings.families import Family
from ms_models.families.config import DecoderConfig, require_full_attention
from ms_models.families.llama.model import LlamaAttention, LlamaDecoderLayer, LlamaForCausalLM, LlamaModel
from ms_models.families.qwen3.sharding import Qwen3Sharding
from ms_models.families.sharding import Sharding


class Qwen3Attention(LlamaAttention):
    """Attention whose queries and keys are normalised head by head before they are rotated."""

    def __init__(self, config: DecoderConfig, sharding: Sharding, layer: int) -> None:
        super().__init__(config, sharding, layer)
        self.q_norm = sharding.head_norm(config.head_dim, config.rms_norm_eps)
        self.k_norm = sharding.head_norm(config.head_dim, config.rms_norm_eps)

    def before_rotation(self, q_BSHD: Tensor, k_BTKD: Tensor) -> tuple[Tensor, Tensor]:
        return self.q_norm(q_BSHD), self.k_norm(k_BTKD)


class Qwen3DecoderLayer(LlamaDecoderLayer):
    """A Llama layer with Qwen3's attention."""

    attention_class = Qwen3Attention


class Qwen3Model(LlamaModel):
    """Embedding, decoder layers, final norm."""

    layer_class = Qwen3DecoderLayer


class Qwen3ForCausalLM(LlamaForCausalLM):
    """Qwen3 with its output head; see `CausalLM` for what it offers."""

    sharding = Qwen3Sharding
    model_class = Qwen3Model

    @staticmethod
    def read_config(raw: Mapping[str, Any], family: Family) -> DecoderConfig:
        """Typed settings from the contents of `config.json`.

        Raises:
            UserError: sliding-window attention is switched on. A window size that is switched off is accepted.
        """
        require_full_attention(raw)
        bias = family.flag(raw, "attention_bias")
        return DecoderConfig.from_json(raw, family, qkv_bias=bias, o_bias=bias)
