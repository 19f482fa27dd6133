"""Qwen3-MoE: Qwen3 with mixtures of experts in place of some or all feed-forward layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mindspore import nn

from mappings.expressions import holds
from mappings.families import Family
from ms_models.families.config import require_full_attention, switch
from ms_models.families.llama.model import LlamaMLP
from ms_models.families.qwen3.model import Qwen3DecoderLayer, Qwen3ForCausalLM, Qwen3Model
from ms_models.families.qwen3_moe.sharding import Qwen3MoeSharding
from ms_models.families.sharding import Sharding
from ms_models.families.sparse import SparseConfig, SparseMLP, experts_per_token, refuse_balancing_loss


def feed_forward(config: SparseConfig, sharding: Sharding, layer: int) -> nn.Cell:
    """Experts or a dense feed-forward, by the index of the layer."""
    return (SparseMLP if config.has_experts[layer] else LlamaMLP)(config, sharding, layer)


class Qwen3MoeDecoderLayer(Qwen3DecoderLayer):
    """A Qwen3 layer, with experts where the configuration wants them."""

    mlp_class = staticmethod(feed_forward)  # type: ignore[assignment]


class Qwen3MoeModel(Qwen3Model):
    """Embedding, decoder layers, final norm."""

    layer_class = Qwen3MoeDecoderLayer


class Qwen3MoeForCausalLM(Qwen3ForCausalLM):
    """Qwen3-MoE with its output head; see `CausalLM` for what it offers."""

    spelling = "hf_fused"
    sharding = Qwen3MoeSharding
    model_class = Qwen3MoeModel

    @staticmethod
    def read_config(raw: Mapping[str, Any], family: Family) -> SparseConfig:
        """Typed settings from the contents of `config.json`.

        Raises:
            UserError: a field is odd, or asks for sliding windows or for a load-balancing loss.
        """
        require_full_attention(raw)
        refuse_balancing_loss(raw)
        bias = family.flag(raw, "attention_bias")
        dims, symbols = family.dims(raw), family.symbols(raw)
        layers = tuple(holds(family.layer_sets["moe"], {**symbols, "layer": layer}) for layer in range(dims["layers"]))
        return SparseConfig.from_json(
            {"max_position_embeddings": 32768, **raw},
            family,
            qkv_bias=bias,
            o_bias=bias,
            experts=dims["experts"],
            experts_per_token=experts_per_token(raw, 8, dims["experts"]) if any(layers) else 0,
            expert_size=dims["moe_ffn"],
            renormalise=switch(raw, "norm_topk_prob", False),
            has_experts=layers,
        )
