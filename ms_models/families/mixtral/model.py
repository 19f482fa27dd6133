"""Mixtral: a Mistral whose feed-forward layers are mixtures of experts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mappings.errors import UserError
from mappings.families import Family
from ms_models.families.config import window_size
from ms_models.families.llama.model import LlamaDecoderLayer, LlamaForCausalLM, LlamaModel
from ms_models.families.mixtral.sharding import MixtralSharding
from ms_models.families.sparse import SparseConfig, SparseMLP, experts_per_token, refuse_balancing_loss

# What transformers takes for fields that config.json leaves out, where other decoders have something else.
DEFAULTS = {
    "rms_norm_eps": 1e-5,
    "rope_theta": 1e6,
    "max_position_embeddings": 131072,
    "sliding_window": None,
    "eos_token_id": 2,
}


class MixtralDecoderLayer(LlamaDecoderLayer):
    """A Llama layer with experts."""

    mlp_class = SparseMLP


class MixtralModel(LlamaModel):
    """Embedding, decoder layers, final norm."""

    layer_class = MixtralDecoderLayer


class MixtralForCausalLM(LlamaForCausalLM):
    """Mixtral with its output head; see `CausalLM` for what it offers."""

    spelling = "hf_fused"
    sharding = MixtralSharding
    model_class = MixtralModel

    @staticmethod
    def read_config(raw: Mapping[str, Any], family: Family) -> SparseConfig:
        """Typed settings from the contents of `config.json`.

        Raises:
            UserError: a field is odd, or asks for noise on the router or for a load-balancing loss.
        """
        refuse_balancing_loss(raw)
        if raw.get("router_jitter_noise"):
            raise UserError(
                f"config.json: router_jitter_noise {raw['router_jitter_noise']!r} is not supported; set it to 0.0"
            )
        if raw.get("layer_types"):
            raise UserError("config.json: layer_types is not supported for mixtral: all its layers have one window")
        dims, raw = family.dims(raw), {**DEFAULTS, **raw}
        return SparseConfig.from_json(
            raw,
            family,
            windows=(window_size(raw),) * dims["layers"],
            experts=dims["experts"],
            experts_per_token=experts_per_token(raw, 2, dims["experts"]),
            expert_size=dims["ffn"],
            has_experts=(True,) * dims["layers"],
        )
