"""Floating point operations of a micro-batch on one rank, forward, and of a training step as it is usually counted."""

from __future__ import annotations

import math

from migrate.plan.activations import expert_rows
from migrate.plan.engine import Engine
from migrate.plan.job import Choice, Job
from migrate.plan.shapes import ModelShapes
from migrate.plan.widths import LayerWidths


def layer_flops(
    shapes: ModelShapes, kind: int, widths: LayerWidths, choice: Choice, job: Job, engine: Engine
) -> tuple[float, float]:
    """Forward pass of one layer on a rank: all of it, and the part between queries and keys.

    Two operations for each weight and token, and `2 S (query + value)` for each head and token; what a causal mask
    hides is computed, too.
    """
    layout = choice.layout
    tokens = choice.tokens(job.seq_length)
    rows, _ = expert_rows(widths, choice, tokens, engine)
    products = 0.0
    for tensor in shapes.layer(kind, layout.tp, layout.ep):
        if tensor.is_expert:
            products += 2.0 * rows * tensor.size / max(widths.experts // layout.ep, 1)
        elif len(tensor.shape) > 1:
            products += 2.0 * tokens * tensor.size
    attention = 2.0 * tokens * job.seq_length * (widths.heads // layout.tp) * (widths.query + widths.value)
    return products + attention, attention


def head_flops(shapes: ModelShapes, choice: Choice, job: Job) -> float:
    """Forward pass of the head on a rank of the last stage."""
    return 2.0 * choice.tokens(job.seq_length) * shapes.head_rows(choice.layout.tp) * shapes.dims["hidden"]


def useful_flops_per_token(shapes: ModelShapes, widths: dict[int, LayerWidths], seq_length: int) -> float:
    """Forward and backward: 6 per weight that a token meets, and `12 layers width length` for attention, as in MFU.

    Chowdhery et al. 2022 (PaLM, arXiv 2204.02311, appendix B), with the experts that a token is sent to.
    """
    total = 6.0 * shapes.dims["vocab"] * shapes.dims["hidden"]
    for kind in shapes.kind_of_layer:
        one = widths[kind]
        for tensor in shapes.layer(kind, 1, 1):
            if tensor.is_expert:
                total += 6.0 * math.prod(tensor.shape) * one.chosen / one.experts
            elif len(tensor.shape) > 1:
                total += 6.0 * tensor.size
        total += 6.0 * seq_length * one.heads * (one.query + one.value)
    return total
