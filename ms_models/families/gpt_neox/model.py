"""GPT-NeoX: attention and feed-forward side by side, rotary positions in a part of each head, biases everywhere.

Shape suffixes: B batch, S query positions, T key positions, H this rank's heads, D head width, M model width.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mindspore import Tensor, nn, ops

from mappings.families import Family
from ms_models.families.causal_lm import CausalLM
from ms_models.families.decoder import Decoder
from ms_models.families.gpt_neox.config import GPTNeoXConfig
from ms_models.families.gpt_neox.sharding import GPTNeoXSharding
from ms_models.families.sharding import Sharding
from ms_models.layers.rotary import rotate


class GPTNeoXAttention(nn.Cell):
    """Self-attention whose queries, keys and values come out of one layer, head by head."""

    def __init__(self, config: GPTNeoXConfig, sharding: GPTNeoXSharding) -> None:
        super().__init__()
        heads, hidden = config.num_attention_heads, config.hidden_size
        self.heads = sharding.local(heads)
        self.width = config.head_dim
        self.enter = sharding.enter()
        self.query_key_value = sharding.attention_in(hidden, heads * 3 * self.width, bias=config.qkv_bias)
        self.dense = sharding.attention_out(heads * self.width, hidden, bias=config.o_bias)
        self.core = sharding.core()

    def construct(
        self, x_BSM: Tensor, rotary: tuple[Tensor, Tensor], bias: Tensor, past: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        x_BSM = self.enter(x_BSM)
        batch, length, _ = x_BSM.shape
        qkv = self.query_key_value(x_BSM).reshape(batch, length, self.heads, 3 * self.width)
        q_BSHD, k_BTHD, v_BTHD = ops.split(qkv, self.width, -1)
        q_BSHD = rotate(q_BSHD, rotary[0], rotary[1])
        k_BTHD = rotate(k_BTHD, rotary[0], rotary[1])
        if past is not None:
            k_BTHD = ops.concat((past[0], k_BTHD), 1)
            v_BTHD = ops.concat((past[1], v_BTHD), 1)
        return self.dense(self.core(q_BSHD, k_BTHD, v_BTHD, bias)), (k_BTHD, v_BTHD)


class GPTNeoXMLP(nn.Cell):
    """Feed-forward: `dense_4h_to_h(act(dense_h_to_4h(x)))`."""

    def __init__(self, config: GPTNeoXConfig, sharding: GPTNeoXSharding) -> None:
        super().__init__()
        self.enter = sharding.enter()
        self.dense_h_to_4h = sharding.ffn_in(config.hidden_size, config.intermediate_size, bias=True)
        self.dense_4h_to_h = sharding.ffn_out(config.intermediate_size, config.hidden_size, bias=True)
        self.act = config.act

    def construct(self, x_BSM: Tensor) -> Tensor:
        return self.dense_4h_to_h(self.act(self.dense_h_to_4h(self.enter(x_BSM))))


class GPTNeoXLayer(nn.Cell):
    """Attention and feed-forward, each behind a norm, both added to the input or one after the other."""

    def __init__(self, config: GPTNeoXConfig, sharding: GPTNeoXSharding, layer: int) -> None:
        super().__init__()
        self.input_layernorm = sharding.layer_norm(config.hidden_size, config.rms_norm_eps)
        self.attention = GPTNeoXAttention(config, sharding)
        self.post_attention_layernorm = sharding.layer_norm(config.hidden_size, config.rms_norm_eps)
        self.mlp = GPTNeoXMLP(config, sharding)
        self.parallel_residual = config.parallel_residual

    def construct(
        self, x_BSM: Tensor, rotary: tuple[Tensor, Tensor], bias: Tensor, past: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        y_BSM, present = self.attention(self.input_layernorm(x_BSM), rotary, bias, past)
        y_BSM = x_BSM + y_BSM
        read_BSM = x_BSM if self.parallel_residual else y_BSM
        return y_BSM + self.mlp(self.post_attention_layernorm(read_BSM)), present


class GPTNeoXModel(Decoder):
    """Embedding, layers, final norm."""

    layer_class = GPTNeoXLayer

    def make_embedding(self, config: GPTNeoXConfig, sharding: Sharding) -> nn.Cell:
        """Tokens to vectors; a pad token learns as every other."""
        return sharding.embedding(config.hidden_size)

    def make_norm(self, config: GPTNeoXConfig, sharding: Sharding) -> nn.Cell:
        """The norm behind the last layer."""
        return sharding.layer_norm(config.hidden_size, config.rms_norm_eps)


class GPTNeoXForCausalLM(CausalLM):
    """GPT-NeoX with its output head; see `CausalLM` for what it offers."""

    sharding = GPTNeoXSharding
    model_class = GPTNeoXModel
    body_name = "gpt_neox"
    renamed = {
        "gpt_neox.embed_tokens.": "gpt_neox.embed_in.",
        "gpt_neox.norm.": "gpt_neox.final_layer_norm.",
        "lm_head.": "embed_out.",
    }

    @staticmethod
    def read_config(raw: Mapping[str, Any], family: Family) -> GPTNeoXConfig:
        """Typed settings from the contents of `config.json`."""
        return GPTNeoXConfig.read(raw, family)
