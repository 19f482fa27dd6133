"""Qwen2 and Qwen2.5 (dense): Llama with biases on q, k and v, and without sliding windows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mappings.errors import UserError
from mappings.families import Family
from ms_models.families.config import DecoderConfig
from ms_models.families.llama.model import LlamaForCausalLM
from ms_models.families.qwen2.sharding import Qwen2Sharding


class Qwen2ForCausalLM(LlamaForCausalLM):
    """Qwen2 with its output head; see `CausalLM` for what it offers."""

    sharding = Qwen2Sharding

    @staticmethod
    def read_config(raw: Mapping[str, Any], family: Family) -> DecoderConfig:
        """Typed settings from the contents of `config.json`.

        Raises:
            UserError: sliding-window attention is switched on. A window size that is switched off is accepted.
        """
        if raw.get("use_sliding_window"):
            raise UserError("config.json: use_sliding_window is true; sliding-window attention is not supported")
        kinds = raw.get("layer_types") or []
        if other := sorted({str(kind) for kind in kinds} - {"full_attention"}):
            raise UserError(f"config.json: layer_types {', '.join(other)}: only full_attention is supported")
        return DecoderConfig.from_json(raw, family, qkv_bias=True)
