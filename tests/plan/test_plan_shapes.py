"""What a plan counts is what every rank holds, element for element, and what divided states are cut into."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import pytest

from mappings.families import family_for_config
from mappings.holdings import Holdings
from mappings.layout import ParallelLayout
from mappings.rank_cuts import RankCuts
from migrate.plan.job import Choice
from migrate.plan.memory import state_elements
from tests.plan.plan_models import TINY, shapes_of

LAYOUTS = {
    "llama": [{"tp": 2, "dp": 2, "pp": 2}, {"tp": 4, "pp": 2, "vpp": 2}, {"tp": 2, "cp": 2, "pp": 5}, {"dp": 3}],
    "qwen2 tied": [{"tp": 2, "pp": 2}, {"tp": 4, "dp": 2, "pp": 4}, {"pp": 2, "vpp": 2}],
    "gpt2": [{"tp": 2, "pp": 2}, {"tp": 4, "dp": 2}],
    "mixtral": [{"tp": 2, "dp": 4, "ep": 2, "pp": 2}, {"dp": 4, "ep": 4}, {"tp": 4, "pp": 4}],
    "deepseek_v3": [{"tp": 2, "dp": 4, "ep": 4, "pp": 2}, {"dp": 2, "ep": 2, "pp": 5}, {"tp": 4}],
}
CASES = [(name, layout) for name, layouts in LAYOUTS.items() for layout in layouts]


@pytest.mark.parametrize(("name", "axes"), CASES)
def test_shapes_are_those_of_every_rank(name: str, axes: dict[str, int]) -> None:
    config, layout = TINY[name], ParallelLayout(**axes)
    shapes, family = shapes_of(config), family_for_config(config)
    for rank in range(layout.world_size):
        held = Holdings(family, config, layout, rank, shapes.spelling).tensors.values()
        contents = shapes.stage(layout, layout.coordinates(rank)["pp"])
        counted: Counter[tuple[int, ...]] = Counter()
        for tensor, count in shapes.tensors(contents, layout.tp, layout.ep):
            counted[tensor.shape] += count
        assert counted == Counter(one.shape for one in held), f"rank {rank}"


@pytest.mark.parametrize("zero", [1, 2])
@pytest.mark.parametrize(("name", "axes"), [("llama", {"dp": 3, "pp": 2}), ("mixtral", {"dp": 4, "ep": 2, "tp": 2})])
def test_states_are_cut_as_checkpoints_cut_them(name: str, axes: dict[str, int], zero: int) -> None:
    config, layout = TINY[name], ParallelLayout(**axes, zero=zero)
    shapes = shapes_of(config)
    cuts = RankCuts(family_for_config(config), config, layout, shapes.spelling)
    for rank in range(layout.world_size):
        wanted = sum(math.prod(piece.shape) for _, piece in cuts.tensors(rank, states=True))
        contents = shapes.stage(layout, layout.coordinates(rank)["pp"])
        weights, gradients, kept = state_elements(shapes, contents, Choice(layout, 1, 1))
        assert kept == wanted
        assert gradients == (kept if zero == 2 else gradients) >= kept
        assert weights == sum(math.prod(piece.shape) for _, piece in cuts.tensors(rank))


def test_parameters_are_those_of_the_model() -> None:
    for name in ("llama", "qwen2 tied", "gpt2", "mixtral"):
        config = TINY[name]
        wanted = sum(math.prod(parameter.shape) for parameter in family_for_config(config).parameters(config))
        assert shapes_of(config).parameters == wanted, name


def test_models_are_held_in_the_spelling_the_plan_takes() -> None:
    from ms_models import auto

    for config in TINY.values():
        kind = auto._models.find(Path("model"), config)
        assert kind.spelling == shapes_of(config).spelling, config["model_type"]
