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
from ms_models.families.llama.sharding import LlamaSharding
from ms_models.layers.attention import causal_bias, grouped_attention, within_window
from ms_models.layers.norm import RMSNorm
from ms_models.layers.rotary import Rotary, rotate
from ms_models.parallel.mesh import Mesh


class LlamaAttention(nn.Cell):
    """Self-attention with rotary positions and grouped queries."""

    def __init__(self, config: DecoderConfig, sharding: LlamaSharding) -> None:
        super().__init__()
        hidden, width = config.hidden_size, config.head_dim
        self.heads = sharding.local(config.num_attention_heads)
        self.kv_heads = sharding.local(config.num_key_value_heads)
        self.width = width
        self.enter = sharding.enter()
        self.q_proj = sharding.attention_in(hidden, config.num_attention_heads * width, bias=config.qkv_bias)
        self.k_proj = sharding.attention_in(hidden, config.num_key_value_heads * width, bias=config.qkv_bias)
        self.v_proj = sharding.attention_in(hidden, config.num_key_value_heads * width, bias=config.qkv_bias)
        self.o_proj = sharding.attention_out(config.num_attention_heads * width, hidden, bias=config.o_bias)

    def construct(
        self, x_BSM: Tensor, rotary: tuple[Tensor, Tensor], bias: Tensor, past: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        batch, length, _ = x_BSM.shape
        x_BSM = self.enter(x_BSM)
        q_BSHD = self.q_proj(x_BSM).reshape(batch, length, self.heads, self.width)
        k_BTKD = self.k_proj(x_BSM).reshape(batch, length, self.kv_heads, self.width)
        v_BTKD = self.v_proj(x_BSM).reshape(batch, length, self.kv_heads, self.width)
        q_BSHD, k_BTKD = self.before_rotation(q_BSHD, k_BTKD)
        q_BSHD = rotate(q_BSHD, rotary[0], rotary[1])
        k_BTKD = rotate(k_BTKD, rotary[0], rotary[1])
        if past is not None:
            k_BTKD = ops.concat((past[0], k_BTKD), 1)
            v_BTKD = ops.concat((past[1], v_BTKD), 1)
        return self.o_proj(self.attend(q_BSHD, k_BTKD, v_BTKD, bias)), (k_BTKD, v_BTKD)

    def before_rotation(self, q_BSHD: Tensor, k_BTKD: Tensor) -> tuple[Tensor, Tensor]:
        """What a family does to queries and keys before their positions are put in; nothing here."""
        return q_BSHD, k_BTKD

    def attend(self, q_BSHD: Tensor, k_BTKD: Tensor, v_BTKD: Tensor, bias: Tensor) -> Tensor:
        """`[B, S, H * D]`."""
        return grouped_attention(q_BSHD, k_BTKD, v_BTKD, bias)


class LlamaMLP(nn.Cell):
    """Gated feed-forward: `down(silu(gate(x)) * up(x))`."""

    def __init__(self, config: DecoderConfig, sharding: LlamaSharding) -> None:
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

    def __init__(self, config: DecoderConfig, sharding: LlamaSharding) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = self.attention_class(config, sharding)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = LlamaMLP(config, sharding)

    def construct(
        self, x_BSM: Tensor, rotary: tuple[Tensor, Tensor], bias: Tensor, past: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        y_BSM, present = self.self_attn(self.input_layernorm(x_BSM), rotary, bias, past)
        x_BSM = x_BSM + y_BSM
        return x_BSM + self.mlp(self.post_attention_layernorm(x_BSM)), present


class LlamaModel(nn.Cell):
    """Embedding, decoder layers, final norm."""

    layer_class: type[Any] = LlamaDecoderLayer

    def __init__(self, config: DecoderConfig, sharding: LlamaSharding) -> None:
        super().__init__()
        self.embed_tokens = sharding.embedding(config.hidden_size, config.pad_token_id)
        self.layers = nn.CellList([self.layer_class(config, sharding) for _ in range(config.num_hidden_layers)])
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.rotary = Rotary(config.rope, config.head_dim)
        windows = config.windows or (None,) * config.num_hidden_layers
        self.windows = tuple(dict.fromkeys(windows))  # each once: layers with the same window share a bias
        self.window_of_layer = tuple(self.windows.index(window) for window in windows)

    def construct(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past: tuple[tuple[Tensor, Tensor], ...] | None = None,
    ) -> tuple[Tensor, tuple[tuple[Tensor, Tensor], ...]]:
        """Hidden states `[B, S, M]` and the keys and values of every layer.

        Args:
            input_ids: `[B, S]`.
            attention_mask: `[B, T]` over past and new positions, 0 for padding.
            position_ids: `[B, S]`; counted from the end of the past where not given.
            past: what an earlier call returned, to continue from it.
        """
        length = input_ids.shape[1]
        before = 0 if past is None else past[0][0].shape[1]
        if position_ids is None:
            position_ids = ops.arange(before, before + length).expand_dims(0)
        rotary = self.rotary(position_ids)
        causal = causal_bias(length, before + length, attention_mask)
        biases = [causal if window is None else within_window(causal, window) for window in self.windows]
        x_BSM = self.embed_tokens(input_ids)
        present: tuple[tuple[Tensor, Tensor], ...] = ()
        for index, layer in enumerate(self.layers):
            bias = biases[self.window_of_layer[index]]
            x_BSM, kv = layer(x_BSM, rotary, bias, None if past is None else past[index])
            present = present + (kv,)
        return self.norm(x_BSM), present


class LlamaForCausalLM(CausalLM):
    """Llama with its output head; see `CausalLM` for what it offers."""

    sharding = LlamaSharding
    model_class: type[Any] = LlamaModel

    def __init__(self, config: DecoderConfig, raw: Mapping[str, Any], family: Family, mesh: Mesh) -> None:
        super().__init__(config, raw, family, mesh)
        sharding = self.sharding(mesh.group("tp"), self.vocab_rows)
        self.model = self.model_class(config, sharding)
        self.enter_head = sharding.enter()
        tied = config.tie_word_embeddings
        self.lm_head = None if tied else sharding.lm_head(config.hidden_size)
        self.check_parameters()

    @staticmethod
    def read_config(raw: Mapping[str, Any], family: Family) -> DecoderConfig:
        """Typed settings from the contents of `config.json`."""
        bias = family.flag(raw, "attention_bias")
        mlp_bias = family.flag(raw, "mlp_bias")
        return DecoderConfig.from_json(raw, family, qkv_bias=bias, o_bias=bias, mlp_bias=mlp_bias)

    def head(self, x_BSM: Tensor) -> Tensor:
        """Logits `[B, S, V]` of this rank's vocabulary rows."""
        x_BSM = self.enter_head(x_BSM)
        if self.lm_head is None:
            return ops.dense(x_BSM, self.model.embed_tokens.weight)
        return self.lm_head(x_BSM)
