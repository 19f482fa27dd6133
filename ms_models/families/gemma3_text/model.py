"""Gemma 3, text: Gemma 2 with normed queries and keys, and rotary positions that differ with the kind of layer.

Suffixes as in the Llama it is built from.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mindspore import Tensor, nn

from mappings.families import Family
from ms_models.families.causal_lm import CausalLM
from ms_models.families.gemma2.model import Gemma2DecoderLayer, Gemma2Model
from ms_models.families.gemma3_text.config import Gemma3Config
from ms_models.families.gemma3_text.sharding import Gemma3Sharding
from ms_models.families.llama.model import LlamaAttention
from ms_models.layers.attention import soft_cap
from ms_models.layers.rotary import Rotary
from ms_models.parallel.place import Place


class Gemma3Rotary(nn.Cell):
    """Tables of both kinds of layers: cosine and sine of full attention, then those of sliding windows."""

    def __init__(self, config: Gemma3Config) -> None:
        super().__init__()
        assert config.rope is not None
        self.full = Rotary(config.rope, config.head_dim)
        self.local = Rotary(config.local_rope, config.head_dim)

    def construct(
        self, position_ids: Tensor, all_positions: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Four tables; see `Rotary`."""
        full, local = self.full(position_ids, all_positions), self.local(position_ids, all_positions)
        return full[0], full[1], local[0], local[1]


class Gemma3Attention(LlamaAttention):
    """Attention with normed queries and keys, a scale of its own, and the rotary positions of its kind of layer."""

    def __init__(self, config: Gemma3Config, sharding: Gemma3Sharding, layer: int) -> None:
        super().__init__(config, sharding, layer)
        self.q_norm = sharding.head_norm(config.head_dim, config.rms_norm_eps)
        self.k_norm = sharding.head_norm(config.head_dim, config.rms_norm_eps)
        self.is_local = config.is_local[layer]

    def make_core(self, config: Any, sharding: Any) -> nn.Cell:
        return sharding.core(config.attention_scale)

    def before_rotation(self, q_BSHD: Tensor, k_BTKD: Tensor) -> tuple[Tensor, Tensor]:
        return self.q_norm(q_BSHD), self.k_norm(k_BTKD)

    def turn(self, x_BSHD: Tensor, rotary: tuple[Tensor, ...]) -> Tensor:
        return super().turn(x_BSHD, rotary[2:] if self.is_local else rotary[:2])


class Gemma3DecoderLayer(Gemma2DecoderLayer):
    """A Gemma 2 layer with Gemma 3's attention."""

    attention_class = Gemma3Attention


class Gemma3Model(Gemma2Model):
    """Scaled embedding, decoder layers, final norm."""

    layer_class = Gemma3DecoderLayer

    def __init__(self, config: Gemma3Config, sharding: Gemma3Sharding) -> None:
        super().__init__(config, sharding)
        self.rotary = Gemma3Rotary(config)


class Gemma3ForCausalLM(CausalLM):
    """Gemma 3 with its output head; see `CausalLM` for what it offers."""

    sharding = Gemma3Sharding
    model_class = Gemma3Model

    def __init__(self, config: Gemma3Config, place: Place) -> None:
        super().__init__(config, place)
        self.cap = config.logit_cap

    @staticmethod
    def read_config(raw: Mapping[str, Any], family: Family) -> Gemma3Config:
        """Typed settings from the contents of `config.json`."""
        return Gemma3Config.read(raw, family)

    def head(self, x_BSM: Tensor) -> Tensor:
        """Logits `[B, S, V]` of this rank's vocabulary rows."""
        logits = super().head(x_BSM)
        return logits if self.cap is None else soft_cap(logits, self.cap)
