"""GPT-2: learned positions, fused queries, keys and values, a feed-forward without gate.

Shape suffixes: B batch, S query positions, T key positions, H this rank's heads, D head width, M model width.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from mindspore import Tensor, nn, ops

from mappings.errors import UserError
from mappings.families import Family
from ms_models.families.causal_lm import CausalLM, likeliest
from ms_models.families.decoder import Cache, Decoder
from ms_models.families.gpt2.config import GPT2Config
from ms_models.families.gpt2.sharding import GPT2Sharding
from ms_models.families.sharding import Sharding
from ms_models.layers.attention import document_positions


class GPT2Attention(nn.Cell):
    """Self-attention whose queries, keys and values come out of one layer, all queries first."""

    def __init__(self, config: GPT2Config, sharding: GPT2Sharding, layer: int) -> None:
        super().__init__()
        hidden = config.hidden_size
        self.heads = sharding.local(config.num_attention_heads)
        self.width = config.head_dim
        self.enter = sharding.enter()
        self.c_attn = sharding.attention_in(hidden, 3 * hidden, bias=True)
        self.c_proj = sharding.attention_out(hidden, hidden, bias=True)
        self.core = sharding.core(scale=config.attention_scales[layer])

    def construct(
        self, x_BSM: Tensor, bias: Tensor, past: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        x_BSM = self.enter(x_BSM)
        batch, length, _ = x_BSM.shape
        q, k, v = ops.split(self.c_attn(x_BSM), self.heads * self.width, -1)
        q_BSHD = q.reshape(batch, length, self.heads, self.width)
        k_BTHD = k.reshape(batch, length, self.heads, self.width)
        v_BTHD = v.reshape(batch, length, self.heads, self.width)
        if past is not None:
            k_BTHD = ops.concat((past[0], k_BTHD), 1)
            v_BTHD = ops.concat((past[1], v_BTHD), 1)
        return self.c_proj(self.core(q_BSHD, k_BTHD, v_BTHD, bias)), (k_BTHD, v_BTHD)


class GPT2MLP(nn.Cell):
    """Feed-forward: `c_proj(act(c_fc(x)))`."""

    def __init__(self, config: GPT2Config, sharding: GPT2Sharding) -> None:
        super().__init__()
        self.enter = sharding.enter()
        self.c_fc = sharding.ffn_in(config.hidden_size, config.intermediate_size, bias=True)
        self.c_proj = sharding.ffn_out(config.intermediate_size, config.hidden_size, bias=True)
        self.act = config.act

    def construct(self, x_BSM: Tensor) -> Tensor:
        return self.c_proj(self.act(self.c_fc(self.enter(x_BSM))))


class GPT2Block(nn.Cell):
    """Attention and feed-forward, each behind a norm and beside a residual connection."""

    def __init__(self, config: GPT2Config, sharding: GPT2Sharding, layer: int) -> None:
        super().__init__()
        self.ln_1 = sharding.layer_norm(config.hidden_size, config.rms_norm_eps)
        self.attn = GPT2Attention(config, sharding, layer)
        self.ln_2 = sharding.layer_norm(config.hidden_size, config.rms_norm_eps)
        self.mlp = GPT2MLP(config, sharding)

    def construct(
        self, x_BSM: Tensor, rotary: None, bias: Tensor, past: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        y_BSM, present = self.attn(self.ln_1(x_BSM), bias, past)
        x_BSM = x_BSM + y_BSM
        return x_BSM + self.mlp(self.ln_2(x_BSM)), present


class GPT2Model(Decoder):
    """Embeddings of tokens and positions, blocks, final norm."""

    layer_class = GPT2Block

    def __init__(self, config: GPT2Config, sharding: GPT2Sharding) -> None:
        super().__init__(config, sharding)
        self.positions = config.max_position_embeddings
        table = sharding.position_table(self.positions, config.hidden_size) if sharding.place.is_first else None
        self.position_table = table

    def make_embedding(self, config: GPT2Config, sharding: Sharding) -> nn.Cell:
        """Tokens to vectors; a pad token learns as every other."""
        return sharding.embedding(config.hidden_size)

    def make_norm(self, config: GPT2Config, sharding: Sharding) -> nn.Cell:
        """The norm behind the last block."""
        return sharding.layer_norm(config.hidden_size, config.rms_norm_eps)

    def through(
        self,
        x_BSM: Tensor,
        chunk: int,
        length: int,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past: Cache | None = None,
    ) -> tuple[Tensor, Cache]:
        """The blocks of one chunk of this stage; the first of all adds the positions before.

        Raises:
            ValueError: positions that were not given run past the table. Those that were given and do make NaN.
        """
        if chunk == 0 and self.position_table is not None:
            before = 0 if past is None else past[0][0].shape[1]
            if position_ids is None:
                if before + length > self.positions:
                    raise ValueError("input_ids are longer than n_positions of config.json")
                position_ids = ops.arange(before, before + length).expand_dims(0)
                if attention_mask is not None and before == 0:
                    position_ids = document_positions(attention_mask)
            inside = ops.logical_and(position_ids >= 0, position_ids < self.positions)
            x_BSM = x_BSM + self.position_table(self.own(ops.where(inside, position_ids, 0)))
            x_BSM = ops.where(inside.all(), x_BSM, float("nan"))
        return super().through(x_BSM, chunk, length, attention_mask, position_ids, past)


class GPT2LMHeadModel(CausalLM):
    """GPT-2 with its output head; see `CausalLM` for what it offers."""

    sharding = GPT2Sharding
    model_class = GPT2Model
    body_name = "transformer"
    renamed = {
        "transformer.embed_tokens.": "transformer.wte.",
        "transformer.position_table.": "transformer.wpe.",
        "transformer.layers.": "transformer.h.",
        "transformer.norm.": "transformer.ln_f.",
    }

    @staticmethod
    def read_config(raw: Mapping[str, Any], family: Family) -> GPT2Config:
        """Typed settings from the contents of `config.json`."""
        return GPT2Config.read(raw, family)

    def generate(
        self,
        input_ids: Tensor,
        max_new_tokens: int,
        attention_mask: Tensor | None = None,
        choose: Callable[[np.ndarray], np.ndarray] = likeliest,
    ) -> Tensor:
        """See `CausalLM`.

        Raises:
            UserError: also where the longest row would run past the table of positions.
        """
        longest = input_ids.shape[1] if attention_mask is None else int((attention_mask.asnumpy() != 0).sum(1).max())
        if longest + max_new_tokens - 1 > self.config.max_position_embeddings:
            raise UserError(
                f"generate: {longest} tokens and {max_new_tokens} new ones are more than "
                f"n_positions={self.config.max_position_embeddings}"
            )
        return super().generate(input_ids, max_new_tokens, attention_mask, choose)
