"""`step_flops`: operations of an optimizer step that a utilisation (MFU) counts."""

from __future__ import annotations

from pathlib import Path

from mappings.families import family_for_config
from mappings.formats.hf_directory import read_config
from mappings.model_flops import flops_per_token
from ms_models.train.config import RunConfig


def step_flops(config: RunConfig, seq_length: int) -> float | None:
    """Of a whole global batch, padding included; None for a class of converted code, whose products nobody knows."""
    if config.model.path is None:
        return None
    raw = read_config(Path(config.model.path))
    return flops_per_token(family_for_config(raw), raw, seq_length) * config.global_batch * seq_length
