"""What `config.json` of a Phi-3 says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mappings.errors import UserError
from mappings.families import Family
from ms_models.families.config import DecoderConfig, window_size
from ms_models.layers.rotary import RopeConfig

# What transformers takes for fields that config.json leaves out.
DEFAULTS = {
    "eos_token_id": 32000,
    "max_position_embeddings": 4096,
    "original_max_position_embeddings": 4096,
    "pad_token_id": 32000,
    "rms_norm_eps": 1e-5,
    "sliding_window": None,
}
DROPOUTS = ("embd_pdrop", "resid_pdrop")
ROPE_KINDS = ("default", "longrope")
FORMER_NAMES = ("su", "yarn")  # of longrope, in the first published files


def read_phi3(raw: Mapping[str, Any], family: Family) -> DecoderConfig:
    """Typed settings from the contents of `config.json`.

    Raises:
        UserError: a dropout, layers of different kinds, or rotary settings that a Phi-3 does not have.
    """
    for field in DROPOUTS:
        if raw.get(field):
            raise UserError(f"config.json: {field} {raw[field]!r} is not supported; set it to 0.0")
    if raw.get("layer_types"):
        raise UserError("config.json: layer_types is not supported for phi3: all its layers have one window")
    config = {**DEFAULTS, **raw}
    windows = (window_size(config),) * family.dims(raw)["layers"]
    return DecoderConfig.from_json(config, family, windows=windows, rope=_rope(config))


def _rope(config: Mapping[str, Any]) -> RopeConfig:
    fields = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if isinstance(fields, Mapping) and fields.get("rope_type", fields.get("type")) in FORMER_NAMES:
        config = {**config, "rope_parameters": {**fields, "rope_type": "longrope"}}
    rope = RopeConfig.from_json(config, partial=True)
    if rope.kind not in ROPE_KINDS:
        known = ", ".join(ROPE_KINDS)
        raise UserError(f"config.json: rope type {rope.kind!r} is not supported for phi3 (known: {known})")
    return rope
