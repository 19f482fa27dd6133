"""Activations of a plan against published counts, and experts' rows against the layer that computes them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mappings.layout import ParallelLayout
from migrate.plan.activations import expert_rows, layer_activations
from migrate.plan.engine import MEGATRON, MSMIGRATE
from migrate.plan.job import GIB, Choice, Job
from migrate.plan.widths import LayerWidths
from tests.plan.plan_models import TINY, shapes_of

GPT = {"model_type": "gpt2", "vocab_size": 51200, "n_embd": 12288, "n_layer": 96, "n_head": 96, "n_positions": 2048}
JOB = Job(devices=8, memory=80 * GIB, seq_length=2048, global_batch=8)
FORMULA = replace(MEGATRON, scores=1.0)


@pytest.mark.parametrize("tp", [1, 8])
def test_a_gpt_layer_keeps_what_korthikanti_et_al_count(tp: int) -> None:
    """arXiv 2205.05198, equation 2 without dropout: `s b h (10 + 24 / t)` less masks, `5 a s / (h t)` for scores.

    Dropout is left out of both: the two masks of a layer (2 bytes) and that of the scores with what it gives (3 of 5).
    Here softmax gives fp32 numbers and rounded ones, there 16-bit ones: 6 bytes in place of 2. The norms of this engine
    keep their results, which equation 2 counts as inputs of the products.
    """
    widths = LayerWidths.of(shapes_of(GPT), 0)
    choice = Choice(ParallelLayout(tp=tp), 1, 8)
    found = layer_activations(widths, choice, JOB, FORMULA)
    s, h, a = 2048, 12288, 96
    assert found.rest == pytest.approx(s * h * (8 + 24 / tp), rel=1e-3)
    assert found.scores == 6 * a * s * s / tp


def test_sequence_parallel_divides_everything_that_is_not_gathered_again() -> None:
    """Equation 4 there: `34 s b h / t`, of which masks are 2."""
    choice = Choice(ParallelLayout(tp=8), 1, 8, sequence_parallel=True)
    found = layer_activations(LayerWidths.of(shapes_of(GPT), 0), choice, JOB, MEGATRON)
    assert (found.rest, found.scores) == (2048 * 12288 * 32 // 8, 0)


def test_policies_leave_less_and_less() -> None:
    widths = LayerWidths.of(shapes_of(GPT), 0)
    layer = layer_activations(widths, Choice(ParallelLayout(), 1, 8), JOB, MSMIGRATE)
    kept = [layer.kept(policy) for policy in ("none", "attention", "block", "full")]
    assert kept[0] > kept[1] > kept[2] == kept[3] == 2048 * 12288 * 2


def test_sequence_parallel_keeps_less_between_the_cut_layers() -> None:
    widths = LayerWidths.of(shapes_of(GPT), 0)
    plain = layer_activations(widths, Choice(ParallelLayout(tp=8), 1, 8), JOB, MSMIGRATE)
    shared = layer_activations(widths, Choice(ParallelLayout(tp=8), 1, 8, sequence_parallel=True), JOB, MSMIGRATE)
    assert shared.input * 8 == plain.input
    assert shared.rest < plain.rest


@pytest.mark.parametrize(("ep", "tokens"), [(1, 12), (2, 64), (4, 1000), (4, 8192)])
def test_rows_of_experts_are_those_of_the_layer(ep: int, tokens: int) -> None:
    from ms_models.layers.moe_blocks import BlockLayout

    shapes = shapes_of(TINY["deepseek_v3"])
    widths = LayerWidths.of(shapes, shapes.kind_of_layer[-1])
    assert (widths.experts, widths.chosen, widths.expert_width, widths.gated) == (8, 2, 16, True)
    blocks, rows = BlockLayout(8 // ep).sizes(tokens * ep, 2)
    choice = Choice(ParallelLayout(dp=ep, ep=ep), 1, 8)
    assert expert_rows(widths, choice, tokens, MSMIGRATE) == (blocks * rows, blocks)
    assert expert_rows(widths, choice, tokens, MEGATRON) == (2 * tokens, 0)


def test_widths_come_from_the_family() -> None:
    latent = LayerWidths.of(shapes_of(TINY["deepseek_v3"]), 0)
    assert (latent.query, latent.value, latent.latent, latent.entered, latent.inner) == (10, 8, 40, 40, 120)
    plain = LayerWidths.of(shapes_of(TINY["gpt2"]), 0)
    assert (plain.gated, plain.inner, plain.key_heads) == (False, 256, 4)
