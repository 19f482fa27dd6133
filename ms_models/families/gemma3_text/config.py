"""`Gemma3Config`: a decoder's settings, and what each kind of layer of a Gemma 3 has of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mappings.errors import UserError
from mappings.families import Family
from ms_models.families.config import DecoderConfig, positive, window_size
from ms_models.layers.rotary import RopeConfig

LOCAL, GLOBAL = "sliding_attention", "full_attention"
KINDS = (LOCAL, GLOBAL)
# What transformers takes for fields that config.json leaves out.
DEFAULTS = {"eos_token_id": 1, "max_position_embeddings": 131072, "pad_token_id": 0}
CAP = "final_logit_softcapping"
GLOBAL_THETA, LOCAL_THETA, PATTERN = 1e6, 1e4, 6


@dataclass(frozen=True)
class Gemma3Config(DecoderConfig):
    """Shape and settings of a Gemma 3 text model. `rope` is that of layers with full attention."""

    local_rope: RopeConfig = field(default_factory=lambda: RopeConfig(LOCAL_THETA))
    """Rotary settings of layers with a sliding window."""
    is_local: tuple[bool, ...] = ()
    """Whether each layer has a sliding window."""
    attention_scale: float = 256**-0.5
    logit_cap: float | None = None
    """Soft cap of the logits; None for none."""

    @classmethod
    def read(cls, raw: Mapping[str, Any], family: Family) -> Gemma3Config:
        """Typed settings from the contents of `config.json`.

        Raises:
            UserError: a field is missing or odd, or asks for what is not supported.
        """
        if raw.get("use_bidirectional_attention"):
            raise UserError("config.json: use_bidirectional_attention is not supported; decoders look back only")
        if (cap := raw.get("attn_logit_softcapping")) is not None:
            raise UserError(
                f"config.json: attn_logit_softcapping {cap!r} is not supported for gemma3_text: "
                "transformers reads it and caps nothing"
            )
        bias = family.flag(raw, "attention_bias")
        window = window_size(raw)
        is_local = _locals(raw, family.dims(raw)["layers"])
        return cls.from_json(
            {**DEFAULTS, **raw},
            family,
            activation=("hidden_activation", "gelu_pytorch_tanh"),
            qkv_bias=bias,
            o_bias=bias,
            windows=tuple(window if local else None for local in is_local),
            rope=_rope(raw, GLOBAL),
            local_rope=_rope(raw, LOCAL),
            is_local=is_local,
            attention_scale=positive(raw, "query_pre_attn_scalar", 256) ** -0.5,
            logit_cap=None if raw.get(CAP) is None else positive(raw, CAP, 0.0),
        )


def _locals(raw: Mapping[str, Any], layers: int) -> tuple[bool, ...]:
    """Whether each layer has a window; without `layer_types`, all but every sixth (`sliding_window_pattern`)."""
    kinds = raw.get("layer_types")
    if kinds is None:
        pattern = raw.get("sliding_window_pattern", PATTERN)
        if type(pattern) is not int or pattern < 1:
            raise UserError(f"config.json: sliding_window_pattern must be a positive whole number, found {pattern!r}")
        return tuple((layer + 1) % pattern != 0 for layer in range(layers))
    if not isinstance(kinds, list) or len(kinds) != layers or not all(kind in KINDS for kind in kinds):
        raise UserError(f"config.json: layer_types must name {layers} layers, each one of {', '.join(KINDS)}")
    return tuple(kind == LOCAL for kind in kinds)


def _rope(raw: Mapping[str, Any], kind: str) -> RopeConfig:
    """Rotary settings of a kind of layer.

    transformers 5 has them by kind of layer in `rope_parameters`. Before, `rope_theta` and `rope_scaling` were those of
    layers with full attention, and `rope_local_base_freq` the base of the others.
    """
    by_kind, scaling = raw.get("rope_parameters") or {}, raw.get("rope_scaling") or {}
    if not isinstance(by_kind, Mapping) or (odd := sorted(set(by_kind) - set(KINDS))):
        found = by_kind if not isinstance(by_kind, Mapping) else ", ".join(odd)
        raise UserError(f"config.json: rope_parameters of gemma3_text has {', '.join(KINDS)}; found {found!r}")
    fields = by_kind.get(kind) or {}
    for name, value in (("rope_parameters", fields), ("rope_scaling", scaling)):
        if not isinstance(value, Mapping):
            raise UserError(f"config.json: {name} must hold an object for {kind}, found {value!r}")
    if kind == GLOBAL:
        fields = {**fields, **scaling}
    field, default = ("rope_theta", GLOBAL_THETA) if kind == GLOBAL else ("rope_local_base_freq", LOCAL_THETA)
    fields = {"rope_theta": raw.get(field, default), **fields}
    return RopeConfig.from_json({**raw, "rope_parameters": fields, "rope_scaling": None})
