"""`GPTNeoXConfig`: settings of a GPT-NeoX, read from `config.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mappings.families import Family
from ms_models.families.config import DecoderConfig, switch
from ms_models.families.ignored_dropout import warn_of_dropout
from ms_models.layers.activation import Activation, activation, gelu
from ms_models.layers.rotary import RopeConfig

# What transformers takes for fields that config.json leaves out.
DROPOUT = {"attention_dropout": 0.0, "hidden_dropout": 0.0}
ROTATED, THETA, END = 0.25, 10000, 2


@dataclass(frozen=True)
class GPTNeoXConfig(DecoderConfig):
    """Shape and settings of a GPT-NeoX. `rms_norm_eps` is that of its layer norms."""

    act: Activation = gelu
    parallel_residual: bool = True
    """Whether attention and feed-forward read the same input, instead of one after the other."""

    @classmethod
    def read(cls, raw: Mapping[str, Any], family: Family) -> GPTNeoXConfig:
        """Typed settings from the contents of `config.json`.

        Raises:
            UserError: a field is missing or odd, or asks for what is not supported.
        """
        warn_of_dropout(raw, DROPOUT)
        name = raw.get("hidden_act", "gelu")
        bias = family.flag(raw, "attention_bias")
        shared = {
            "eos_token_id": END,
            **raw,
            "rms_norm_eps": raw.get("layer_norm_eps", 1e-5),
            "attention_dropout": 0.0,  # warned of above
        }
        return cls.from_json(
            shared,
            family,
            activation=("hidden_act", name),  # any of those that the layers know
            sizes={"kv_heads": family.dims(raw)["heads"]},
            rope=RopeConfig.from_json(rotary_fields(raw), partial=True),
            qkv_bias=bias,
            o_bias=bias,
            act=activation("hidden_act", name),
            parallel_residual=switch(raw, "use_parallel_residual", True),
        )


def rotary_fields(raw: Mapping[str, Any]) -> dict[str, Any]:
    """`config.json` with the rotary settings in the fields of other families.

    Before transformers 5 they were called `rotary_pct` and `rotary_emb_base`.
    """
    fields = dict(raw.get("rope_parameters") or raw.get("rope_scaling") or {})
    fields.setdefault("partial_rotary_factor", raw.get("rotary_pct", ROTATED))
    fields.setdefault("rope_theta", raw.get("rotary_emb_base", raw.get("rope_theta", THETA)))
    return {**raw, "rope_parameters": fields}
