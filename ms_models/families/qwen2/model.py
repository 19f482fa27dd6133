"""Qwen2 and Qwen2.5 (dense): Llama with biases on q, k and v, and without sliding windows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mappings.families import Family
from ms_models.families.config import DecoderConfig, require_full_attention
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
        require_full_attention(raw)
        return DecoderConfig.from_json(raw, family, qkv_bias=True)
