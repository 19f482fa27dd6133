"""Llama 2 and 3 as native MindSpore cells. Reads like a one-process model; `sharding.py` decides what a rank holds.

Shape suffixes: B batch, S query positions, T key positions, H this rank's query heads, K its key/value heads,
D head width, M model width, V this rank's vocabulary rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mindspore import Tensor, nn, ops

from mappings.families import Family
from ms_models.families.causal_lm import CausalLM
from ms_models.families.config import DecoderConfig
from ms_models.families.decoder import Decoder
from ms_models.families.llama.sharding import LlamaSharding
from ms_models.families.sharding import Sharding
from ms_models.layers.rotary import rotate


class LlamaAttention(nn.Cell):
    """Self-attention with rotary positions and grouped queries."""

    def __init__(self, config: DecoderConfig, sharding: Sharding, layer: int) -> None:
        super().__init__()
        self.heads = sharding.local(config.num_attention_heads)
        self.kv_heads = sharding.local(config.num_key_value_heads)
        self.width = config.head_dim
        self.enter = sharding.enter()
        self.make_projections(config, sharding)
        self.core = self.make_core(config, sharding)

    def make_projections(self, config: DecoderConfig, sharding: Any) -> None:
        """Into queries, keys and values, and out of the heads."""
        hidden, width = config.hidden_size, config.head_dim
        self.q_proj = sharding.attention_in(hidden, config.num_attention_heads * width, bias=config.qkv_bias)
        self.k_proj = sharding.key_value_in(hidden, config.num_key_value_heads, width, bias=config.qkv_bias)
        self.v_proj = sharding.key_value_in(hidden, config.num_key_value_heads, width, bias=config.qkv_bias)
        self.o_proj = sharding.attention_out(config.num_attention_heads * width, hidden, bias=config.o_bias)

    def make_core(self, config: Any, sharding: Sharding) -> nn.Cell:
        """Attention between the projections."""
        return sharding.core()

    def construct(
        self, x_BSM: Tensor, rotary: tuple[Tensor, Tensor], bias: Tensor, past: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        q_BSHD, k_BTKD, v_BTKD = self.project(self.enter(x_BSM))
        q_BSHD, k_BTKD = self.before_rotation(q_BSHD, k_BTKD)
        q_BSHD = self.turn(q_BSHD, rotary)
        k_BTKD = self.turn(k_BTKD, rotary)
        if past is not None:
            k_BTKD = ops.concat((past[0], k_BTKD), 1)
            v_BTKD = ops.concat((past[1], v_BTKD), 1)
        return self.o_proj(self.core(q_BSHD, k_BTKD, v_BTKD, bias)), (k_BTKD, v_BTKD)

    def project(self, x_BSM: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of this rank's heads."""
        batch, length, _ = x_BSM.shape
        q_BSHD = self.q_proj(x_BSM).reshape(batch, length, self.heads, self.width)
        k_BTKD = self.k_proj(x_BSM).reshape(batch, length, self.kv_heads, self.width)
        v_BTKD = self.v_proj(x_BSM).reshape(batch, length, self.kv_heads, self.width)
        return q_BSHD, k_BTKD, v_BTKD

    def turn(self, x_BSHD: Tensor, rotary: tuple[Tensor, ...]) -> Tensor:
        """Puts positions into queries or keys."""
        return rotate(x_BSHD, rotary[0], rotary[1])

    def before_rotation(self, q_BSHD: Tensor, k_BTKD: Tensor) -> tuple[Tensor, Tensor]:
        """What a family does to queries and keys before their positions are put in; nothing here."""
        return q_BSHD, k_BTKD


class LlamaMLP(nn.Cell):
    """Gated feed-forward: `down(silu(gate(x)) * up(x))`."""

    def __init__(self, config: DecoderConfig, sharding: Sharding, layer: int) -> None:
        super().__init__()
        hidden, ffn = config.hidden_size, config.intermediate_size
        self.enter = sharding.enter()
        self.gate_proj = sharding.ffn_in(hidden, ffn, bias=config.mlp_bias)
        self.up_proj = sharding.ffn_in(hidden, ffn, bias=config.mlp_bias)
        self.down_proj = sharding.ffn_out(ffn, hidden, bias=config.mlp_bias)

    def construct(self, x_BSM: Tensor) -> Tensor:
        x_BSM = self.enter(x_BSM)
        return self.down_proj(ops.silu(self.gate_proj(x_BSM)) * self.up_proj(x_BSM))


class LlamaDecoderLayer(nn.Cell):
    """Attention and feed-forward, each behind a norm and beside a residual connection."""

    attention_class: type[Any] = LlamaAttention
    mlp_class: type[Any] = LlamaMLP

    def __init__(self, config: DecoderConfig, sharding: Sharding, layer: int) -> None:
        super().__init__()
        self.input_layernorm = sharding.norm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = self.attention_class(config, sharding, layer)
        self.post_attention_layernorm = sharding.norm(config.hidden_size, config.rms_norm_eps)
        self.mlp = self.mlp_class(config, sharding, layer)

    def construct(
        self, x_BSM: Tensor, rotary: tuple[Tensor, Tensor], bias: Tensor, past: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        y_BSM, present = self.self_attn(self.input_layernorm(x_BSM), rotary, bias, past)
        x_BSM = x_BSM + y_BSM
        return x_BSM + self.mlp(self.post_attention_layernorm(x_BSM)), present


class LlamaModel(Decoder):
    """Embedding, decoder layers, final norm."""

    layer_class = LlamaDecoderLayer


class LlamaForCausalLM(CausalLM):
    """Llama with its output head; see `CausalLM` for what it offers."""

    sharding = LlamaSharding
    model_class = LlamaModel

    @staticmethod
    def read_config(raw: Mapping[str, Any], family: Family) -> DecoderConfig:
        """Typed settings from the contents of `config.json`."""
        bias = family.flag(raw, "attention_bias")
        mlp_bias = family.flag(raw, "mlp_bias")
        return DecoderConfig.from_json(raw, family, qkv_bias=bias, o_bias=bias, mlp_bias=mlp_bias)
