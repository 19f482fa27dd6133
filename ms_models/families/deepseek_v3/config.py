"""`DeepseekV3Config`: a decoder's settings, and those of latent attention, experts and further-token layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mappings.errors import UserError
from mappings.families import Family
from ms_models.families.config import DecoderConfig, switch
from ms_models.families.deepseek_v3.router import RouterConfig
from ms_models.layers.mla import MLAConfig
from ms_models.layers.rotary import RopeConfig
from ms_models.layers.yarn import YarnRope

# What transformers takes for fields that config.json leaves out.
DEFAULTS = {"max_position_embeddings": 4096, "eos_token_id": 1}
# Fields of published configurations, and the one value of each that transformers computes.
FIXED = {"scoring_func": "sigmoid", "topk_method": "noaux_tc", "moe_layer_freq": 1}


@dataclass(frozen=True, kw_only=True)
class DeepseekV3Config(DecoderConfig):
    """Shape and settings of a DeepSeek-V3. `head_dim` is the rotated part of a head, as in transformers."""

    attention: MLAConfig
    router: RouterConfig
    expert_size: int
    """Inner width of an expert."""
    shared_size: int
    """Inner width of what every token passes beside its experts; 0 for nothing."""
    first_moe_layer: int
    """Layers before it have a dense feed-forward."""
    further_tokens: int
    """Number of layers that predict further tokens, where the checkpoint has them."""

    @classmethod
    def read(cls, raw: Mapping[str, Any], family: Family) -> DeepseekV3Config:
        """Typed settings from the contents of `config.json`.

        Raises:
            UserError: a field is missing or odd, or asks for what is not supported.
        """
        for field, known in FIXED.items():
            if (asked := raw.get(field, known)) != known:
                raise UserError(f"config.json: {field} {asked!r} is not supported, only {known!r}")
        if raw.get("output_router_logits"):
            raise UserError("config.json: output_router_logits is not supported; set it to false")
        raw = {**DEFAULTS, **raw}
        dims = family.dims(raw)
        if (kv_heads := raw.get("num_key_value_heads") or dims["heads"]) != dims["heads"]:
            raise UserError(
                f"config.json: num_key_value_heads {kv_heads!r} is not supported: latent attention has as many "
                f"as num_attention_heads, {dims['heads']}"
            )
        rope = RopeConfig.from_json(raw)
        return cls.from_json(
            raw,
            family,
            sizes={"kv_heads": dims["heads"], "head_dim": dims["rope"]},
            rope=rope,
            attention=_attention(raw, family, rope),
            router=RouterConfig.read(raw, dims["experts"]),
            expert_size=dims["moe_ffn"],
            shared_size=dims["shared_experts"] * dims["moe_ffn"],
            first_moe_layer=dims["first_dense"],
            further_tokens=dims["mtp"],
        )


def _attention(raw: Mapping[str, Any], family: Family, rope: RopeConfig) -> MLAConfig:
    dims = family.dims(raw)
    scale = (dims["nope"] + dims["rope"]) ** -0.5
    if isinstance(rope.scaling, YarnRope):
        scale *= rope.scaling.score_scale
    elif rope.kind != "default":
        raise UserError(f"config.json: rope type {rope.kind!r} is not supported here (known: default, yarn)")
    return MLAConfig(
        hidden=dims["hidden"],
        heads=dims["heads"],
        q_rank=dims["q_rank"],
        kv_rank=dims["kv_rank"],
        nope=dims["nope"],
        rope=dims["rope"],
        value=dims["v_dim"],
        scale=scale,
        interleaved=switch(raw, "rope_interleave", True),
        bias=family.flag(raw, "attention_bias"),
    )
