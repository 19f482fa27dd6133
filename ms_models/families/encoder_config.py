"""`EncoderConfig`: what BERT and its relatives need to know, read from `config.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mappings.errors import UserError
from mappings.families import Family
from ms_models.families.config import positive
from ms_models.layers.activation import Activation, activation


@dataclass(frozen=True)
class EncoderConfig:
    """Shape and settings of an encoder with learned positions."""

    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    head_dim: int
    activation: Activation
    layer_norm_eps: float
    max_position_embeddings: int
    """Rows of the position table."""
    type_vocab_size: int
    """Kinds of segments a token may belong to."""
    tie_word_embeddings: bool
    """Whether the output head is the embedding table."""
    hidden_dropout: float
    """Share of the residual branches and of the embeddings that is dropped in training."""
    attention_dropout: float
    """Share of the attention weights that is dropped in training."""
    initializer_range: float
    """Standard deviation of new weights."""
    pad_token_id: int | None = None
    """Token whose lookups teach its row nothing."""

    @classmethod
    def read(cls, raw: Mapping[str, Any], family: Family, pad_token_id: int) -> EncoderConfig:
        """Typed settings from the contents of `config.json`.

        Args:
            raw: `config.json`.
            family: facts of the family.
            pad_token_id: what transformers takes where the field is left out.

        Raises:
            UserError: a field is missing or odd, or asks for what is not supported.
        """
        _refuse(raw)
        dims = family.dims(raw)
        hidden, heads = dims["hidden"], dims["heads"]
        if hidden % heads:
            raise UserError(f"config.json: num_attention_heads={heads} does not divide hidden_size={hidden}")
        if dims["head_dim"] * heads != hidden:
            raise UserError(f"config.json: head_dim {dims['head_dim']} is not supported; it must be {hidden // heads}")
        pad = raw.get("pad_token_id", pad_token_id)
        if pad is not None and (type(pad) is not int or not 0 <= pad < dims["vocab"]):
            raise UserError(f"config.json: pad_token_id must be a token id or null, found {pad!r}")
        return cls(
            model_type=raw["model_type"],
            vocab_size=dims["vocab"],
            hidden_size=hidden,
            intermediate_size=dims["ffn"],
            num_hidden_layers=dims["layers"],
            num_attention_heads=heads,
            head_dim=dims["head_dim"],
            activation=activation("hidden_act", raw.get("hidden_act", "gelu")),
            layer_norm_eps=positive(raw, "layer_norm_eps", 1e-12),
            max_position_embeddings=dims["positions"],
            type_vocab_size=dims["token_types"],
            tie_word_embeddings=family.flag(raw, "tied"),
            hidden_dropout=_share(raw, "hidden_dropout_prob"),
            attention_dropout=_share(raw, "attention_probs_dropout_prob"),
            initializer_range=positive(raw, "initializer_range", 0.02),
            pad_token_id=pad,
        )


def _refuse(raw: Mapping[str, Any]) -> None:
    """Raises a UserError for what these encoders can be in transformers and are not here."""
    if (kind := raw.get("position_embedding_type", "absolute")) != "absolute":
        raise UserError(f"config.json: position_embedding_type {kind!r} is not supported, only 'absolute'")
    for field in ("is_decoder", "add_cross_attention"):
        if raw.get(field):
            raise UserError(f"config.json: {field} {raw[field]!r} is not supported; encoders look both ways, alone")
    if raw.get("pruned_heads"):
        raise UserError(f"config.json: pruned_heads {raw['pruned_heads']!r} is not supported; every head must be there")
    if raw.get("quantization_config"):
        raise UserError("config.json: quantized weights are not supported; save the model unquantized first")


def _share(raw: Mapping[str, Any], field: str) -> float:
    value = raw.get(field, 0.1)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        raise UserError(f"config.json: {field} must be a share of at least 0 and below 1, found {value!r}")
    return float(value)
