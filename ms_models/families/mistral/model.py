"""Mistral (dense): Llama without biases, in which every layer may look back over a sliding window only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mappings.errors import UserError
from mappings.families import Family
from ms_models.families.config import DecoderConfig, window_size
from ms_models.families.llama.model import LlamaForCausalLM
from ms_models.families.mistral.sharding import MistralSharding


class MistralForCausalLM(LlamaForCausalLM):
    """Mistral with its output head; see `CausalLM` for what it offers."""

    sharding = MistralSharding

    @staticmethod
    def read_config(raw: Mapping[str, Any], family: Family) -> DecoderConfig:
        """Typed settings from the contents of `config.json`.

        Raises:
            UserError: layers of different kinds, which transformers' Mistral does not have, or an odd window.
        """
        if raw.get("layer_types"):
            raise UserError("config.json: layer_types is not supported for mistral: all its layers have one window")
        windows = (window_size(raw),) * family.dims(raw)["layers"]
        # transformers' end token where config.json names none
        return DecoderConfig.from_json({"eos_token_id": 2, **raw}, family, windows=windows)
