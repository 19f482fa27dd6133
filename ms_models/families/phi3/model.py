"""Phi-3: Llama whose q, k and v are one tensor, whose gate and up are another, with windows and LongRoPE.

Suffixes as in the Llama it is built from.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mindspore import Tensor, nn, ops

from mappings.families import Family
from ms_models.families.config import DecoderConfig
from ms_models.families.llama.model import LlamaAttention, LlamaDecoderLayer, LlamaForCausalLM, LlamaModel
from ms_models.families.phi3.config import read_phi3
from ms_models.families.phi3.sharding import Phi3Sharding
from ms_models.layers.long_rope import LongRope
from ms_models.parallel.place import Place


class Phi3Attention(LlamaAttention):
    """Attention with one projection into queries, keys and values; a part of each head may be rotated."""

    def make_projections(self, config: DecoderConfig, sharding: Phi3Sharding) -> None:
        heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.qkv_proj = sharding.query_key_value(config.hidden_size, heads, kv_heads, config.head_dim)
        self.o_proj = sharding.attention_out(heads * config.head_dim, config.hidden_size)

    def project(self, x_BSM: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        batch, length, _ = x_BSM.shape
        heads = self.qkv_proj(x_BSM).reshape(batch, length, self.heads + 2 * self.kv_heads, self.width)
        q_BSHD, k_BTKD, v_BTKD = ops.split(heads, [self.heads, self.kv_heads, self.kv_heads], 2)
        return q_BSHD, k_BTKD, v_BTKD


class Phi3MLP(nn.Cell):
    """Gated feed-forward: `down(silu(gate(x)) * up(x))`, gate and up made at once."""

    def __init__(self, config: DecoderConfig, sharding: Phi3Sharding, layer: int) -> None:
        super().__init__()
        hidden, ffn = config.hidden_size, config.intermediate_size
        self.enter = sharding.enter()
        self.gate_up_proj = sharding.gate_up(hidden, ffn)
        self.down_proj = sharding.ffn_out(ffn, hidden)

    def construct(self, x_BSM: Tensor) -> Tensor:
        both = self.gate_up_proj(self.enter(x_BSM))
        gate, up = ops.split(both, both.shape[-1] // 2, -1)
        return self.down_proj(ops.silu(gate) * up)


class Phi3DecoderLayer(LlamaDecoderLayer):
    """A Llama layer with Phi-3's attention and feed-forward."""

    attention_class = Phi3Attention
    mlp_class = Phi3MLP


class Phi3Model(LlamaModel):
    """Embedding, decoder layers, final norm."""

    layer_class = Phi3DecoderLayer


class Phi3ForCausalLM(LlamaForCausalLM):
    """Phi-3 with its output head; see `CausalLM` for what it offers."""

    sharding = Phi3Sharding
    model_class = Phi3Model

    def __init__(self, config: DecoderConfig, place: Place) -> None:
        super().__init__(config, place)
        scaling: Any = None if config.rope is None else config.rope.scaling
        # Keys that the short factors turned do not fit queries that the long ones turn.
        self.cached_until = scaling.original if isinstance(scaling, LongRope) else None

    @staticmethod
    def read_config(raw: Mapping[str, Any], family: Family) -> DecoderConfig:
        """Typed settings from the contents of `config.json`."""
        return read_phi3(raw, family)
