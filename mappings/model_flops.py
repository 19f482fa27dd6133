"""Floating point operations that training needs for a token, as a share of which utilisation (MFU) is stated."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from mappings.families.family import Family

CHOSEN = ("num_experts_per_tok", "num_experts_per_token", "moe_k", "moe_topk", "experts_per_token")
"""Configuration fields that say how many experts a token is sent to."""


def flops_per_token(family: Family, config: Mapping[str, Any], seq_length: int) -> float:
    """Forward and backward pass: 6 for each weight that a token meets, and `12 layers heads head_dim length`.

    Chowdhery et al. 2022 (PaLM, arXiv 2204.02311, appendix B). A looked-up table is no product; the output layer is,
    also where it is that table. Of experts, those that a token is sent to. What a causal mask hides is counted; what is
    computed again in the backward pass is not.

    Args:
        family: of the model.
        config: contents of `config.json`.
        seq_length: tokens of a sequence.
    """
    dims = family.dims(config)
    experts, weights = dims.get("experts", 0), 0.0
    chosen = next((config[name] for name in CHOSEN if isinstance(config.get(name), int)), experts)
    for atom in family.atoms(config).values():
        if len(atom.shape) > 1 and atom.layer_class not in ("embedding", "lm_head") and atom.layer is not None:
            share = chosen / experts if atom.expert is not None and experts else 1.0
            weights += math.prod(atom.shape) * share
    output = dims["vocab"] * dims["hidden"]
    return 6.0 * (weights + output) + 6.0 * dims["layers"] * seq_length * sum(_attention_widths(dims))


def _attention_widths(dims: Mapping[str, int]) -> tuple[int, int]:
    """Of all heads together, what a query has and what a value has."""
    heads = dims["heads"]
    head = dims.get("head_dim", dims["hidden"] // heads)
    query = dims["nope"] + dims["rope"] if {"nope", "rope"} <= dims.keys() else head
    return heads * query, heads * dims.get("v_dim", head)
