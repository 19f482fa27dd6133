"""`DecoderConfig`: what a dense decoder needs to know, read from `config.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from mappings.errors import UserError
from mappings.families import Family
from ms_models.layers.rotary import RopeConfig


@dataclass(frozen=True)
class DecoderConfig:
    """Shape and settings of a Llama-like decoder."""

    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    rope: RopeConfig | None
    """Rotary positions; None where positions are put in otherwise."""
    max_position_embeddings: int
    """Longest sequence the model was made for; not enforced here."""
    tie_word_embeddings: bool
    """Whether the output head is the embedding table."""
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    windows: tuple[int | None, ...] = ()
    """Sliding window of each layer, None for full attention; empty: full attention everywhere."""
    eos_token_ids: tuple[int, ...] = ()
    """Tokens that end generation."""
    pad_token_id: int | None = None
    """Token that fills rows which ended."""

    @classmethod
    def from_json(
        cls,
        config: Mapping[str, Any],
        family: Family,
        activation: tuple[str, str] = ("hidden_act", "silu"),
        sizes: Mapping[str, int] | None = None,
        **settings: Any,
    ) -> Self:
        """Reads the fields common to all dense decoders; `settings` are a family's own.

        Args:
            config: `config.json`.
            family: facts of the family.
            activation: field of the activation, and the one value of it that the family's cells compute.
            sizes: dimensions (`kv_heads`, `head_dim`) that the family has no fields for.
            settings: further fields of the result; `rope` too where a family reads more than plain rotary settings.

        Raises:
            UserError: a field is missing or odd, or asks for what is not supported.
        """
        dims = {**family.dims(config), **(sizes or {})}
        field, known = activation
        if (asked := config.get(field, known)) != known:
            raise UserError(f"config.json: {field} {asked!r} is not supported, only {known!r}")
        if config.get("attention_dropout"):
            raise UserError("config.json: attention_dropout is not supported; set it to 0.0")
        if config.get("quantization_config"):
            raise UserError("config.json: quantized weights are not supported; save the model unquantized first")
        if dims["heads"] % dims["kv_heads"]:
            raise UserError(
                f"config.json: num_key_value_heads={dims['kv_heads']} does not divide "
                f"num_attention_heads={dims['heads']}"
            )
        if dims["head_dim"] % 2:
            raise UserError(f"config.json: head_dim must be even for rotary positions, found {dims['head_dim']}")
        if "rope" not in settings:
            settings["rope"] = RopeConfig.from_json(config)
        return cls(
            model_type=config["model_type"],
            vocab_size=dims["vocab"],
            hidden_size=dims["hidden"],
            intermediate_size=dims["ffn"],
            num_hidden_layers=dims["layers"],
            num_attention_heads=dims["heads"],
            num_key_value_heads=dims["kv_heads"],
            head_dim=dims["head_dim"],
            rms_norm_eps=positive(config, "rms_norm_eps", 1e-6),
            max_position_embeddings=int(positive(config, "max_position_embeddings", 2048)),
            tie_word_embeddings=family.flag(config, "tied"),
            eos_token_ids=token_ids(config, "eos_token_id"),
            pad_token_id=next(iter(token_ids(config, "pad_token_id")), None),
            **settings,
        )


def require_full_attention(config: Mapping[str, Any]) -> None:
    """Raises a UserError when sliding-window attention is switched on, as the Qwen families spell it."""
    if config.get("use_sliding_window"):
        raise UserError("config.json: use_sliding_window is true; sliding-window attention is not supported")
    kinds = config.get("layer_types") or []
    if other := sorted({str(kind) for kind in kinds} - {"full_attention"}):
        raise UserError(f"config.json: layer_types {', '.join(other)}: only full_attention is supported")


def window_size(config: Mapping[str, Any]) -> int | None:
    """`sliding_window` of `config.json`; None where it is null.

    Raises:
        UserError: it is no positive whole number.
    """
    value = config.get("sliding_window", 4096)  # the default of every family that has the field
    if value is not None and (type(value) is not int or value < 1):
        raise UserError(f"config.json: sliding_window must be a positive whole number or null, found {value!r}")
    return value


def positive(config: Mapping[str, Any], field: str, default: float) -> float:
    """A positive number of `config.json`, or a UserError."""
    value = config.get(field, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise UserError(f"config.json: {field} must be a positive number, found {value!r}")
    return value


def switch(config: Mapping[str, Any], field: str, default: bool) -> bool:
    """A boolean of `config.json`, or a UserError."""
    value = config.get(field, default)
    if not isinstance(value, bool):
        raise UserError(f"config.json: {field} must be true or false, found {value!r}")
    return value


def token_ids(config: Mapping[str, Any], field: str) -> tuple[int, ...]:
    """The token ids of a field that holds one, a list of them or null; a UserError for anything else."""
    value = config.get(field)
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if not all(type(item) is int for item in ids):
        raise UserError(f"config.json: {field} must be a token id or a list of them, found {value!r}")
    return tuple(ids)
