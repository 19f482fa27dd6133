"""`GPT2Config`: settings of a GPT-2, read from `config.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mappings.errors import UserError
from mappings.families import Family
from ms_models.families.config import DecoderConfig, positive, switch, token_ids
from ms_models.families.ignored_dropout import warn_of_dropout
from ms_models.layers.activation import Activation, activation, gelu_tanh

# What transformers takes for fields that config.json leaves out.
DROPOUT = {"resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1}
END = 50256


@dataclass(frozen=True)
class GPT2Config(DecoderConfig):
    """Shape and settings of a GPT-2. `rms_norm_eps` is that of its layer norms."""

    act: Activation = gelu_tanh
    attention_scales: tuple[float, ...] = ()
    """What scores are multiplied by, per layer."""

    @classmethod
    def read(cls, raw: Mapping[str, Any], family: Family) -> GPT2Config:
        """Typed settings from the contents of `config.json`.

        `reorder_and_upcast_attn` says in which order a score is scaled and in which precision it is summed. Neither
        changes what fp32 computes, and softmax is fp32 here in any case, so both values are accepted.

        Raises:
            UserError: a field is missing or odd, or asks for what is not supported.
        """
        dims = family.dims(raw)
        if switch(raw, "add_cross_attention", False):
            raise UserError("config.json: add_cross_attention is true; decoders attend to themselves only")
        if raw.get("quantization_config"):
            raise UserError("config.json: quantized weights are not supported; save the model unquantized first")
        if dims["hidden"] != dims["heads"] * dims["head_dim"]:
            raise UserError(f"config.json: n_head={dims['heads']} does not divide n_embd={dims['hidden']}")
        warn_of_dropout(raw, DROPOUT)
        scale = dims["head_dim"] ** -0.5 if switch(raw, "scale_attn_weights", True) else 1.0
        falls = switch(raw, "scale_attn_by_inverse_layer_idx", False)
        scales = tuple(scale / (layer + 1) if falls else scale for layer in range(dims["layers"]))
        return cls(
            model_type=raw["model_type"],
            vocab_size=dims["vocab"],
            hidden_size=dims["hidden"],
            intermediate_size=dims["ffn"],
            num_hidden_layers=dims["layers"],
            num_attention_heads=dims["heads"],
            num_key_value_heads=dims["heads"],
            head_dim=dims["head_dim"],
            rms_norm_eps=positive(raw, "layer_norm_epsilon", 1e-5),
            rope=None,
            max_position_embeddings=dims["positions"],
            tie_word_embeddings=family.flag(raw, "tied"),
            eos_token_ids=token_ids({"eos_token_id": END, **raw}, "eos_token_id"),
            pad_token_id=next(iter(token_ids(raw, "pad_token_id")), None),
            act=activation("activation_function", raw.get("activation_function", "gelu_new")),
            attention_scales=scales,
        )
