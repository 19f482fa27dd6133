"""`Gemma2Config`: a decoder's settings, and the caps and scale of Gemma 2."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mappings.errors import UserError
from mappings.families import Family
from ms_models.families.config import DecoderConfig, positive, window_size

KINDS = ("sliding_attention", "full_attention")
# What transformers takes for fields that config.json leaves out.
DEFAULTS = {"pad_token_id": 0, "eos_token_id": 1}


@dataclass(frozen=True)
class Gemma2Config(DecoderConfig):
    """Shape and settings of a Gemma 2."""

    attention_scale: float = 256**-0.5
    attention_cap: float | None = None
    """Soft cap of attention scores; None for none."""
    logit_cap: float | None = None
    """Soft cap of the logits; None for none."""

    @classmethod
    def read(cls, raw: Mapping[str, Any], family: Family) -> Gemma2Config:
        """Typed settings from the contents of `config.json`.

        Raises:
            UserError: a field is missing or odd, or asks for what is not supported.
        """
        if raw.get("use_bidirectional_attention"):
            raise UserError("config.json: use_bidirectional_attention is not supported; decoders look back only")
        bias = family.flag(raw, "attention_bias")
        return cls.from_json(
            {**DEFAULTS, **raw},
            family,
            activation=("hidden_activation", "gelu_pytorch_tanh"),
            qkv_bias=bias,
            o_bias=bias,
            windows=_windows(raw, family.dims(raw)["layers"]),
            attention_scale=positive(raw, "query_pre_attn_scalar", 256) ** -0.5,
            attention_cap=_cap(raw, "attn_logit_softcapping", 50.0),
            logit_cap=_cap(raw, "final_logit_softcapping", 30.0),
        )


def _cap(raw: Mapping[str, Any], field: str, default: float) -> float | None:
    return None if raw.get(field, default) is None else positive(raw, field, default)


def _windows(raw: Mapping[str, Any], layers: int) -> tuple[int | None, ...]:
    """The window of each layer; without `layer_types`, the first layer has one and every other after it."""
    kinds = raw.get("layer_types")
    if kinds is None:
        kinds = [KINDS[layer % 2] for layer in range(layers)]
    if not isinstance(kinds, list) or len(kinds) != layers or not all(kind in KINDS for kind in kinds):
        raise UserError(f"config.json: layer_types must name {layers} layers, each one of {', '.join(KINDS)}")
    window = window_size(raw)
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)
