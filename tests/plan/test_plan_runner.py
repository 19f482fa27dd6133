"""What the runner allocates on one process, against the plan; several ranks in `tests/benchmarks/plan_memory.py`."""

from __future__ import annotations

from pathlib import Path

import pytest

from mappings.families import family_for_config
from mappings.layout import ParallelLayout
from migrate.plan.job import Choice
from migrate.plan.memory import state_elements
from tests.plan.plan_models import TINY, shapes_of

MORE = {"hidden_act": "silu", "rms_norm_eps": 1e-5, "max_position_embeddings": 64, "rope_theta": 10000.0}


@pytest.mark.parametrize("name", ["llama", "mixtral", "qwen2 tied"])
def test_weights_gradients_and_states_are_what_was_planned(name: str) -> None:
    from ms_models import auto
    from ms_models.parallel.mesh import Mesh
    from ms_models.parallel.place import Place
    from ms_models.train.config import OptimizerConfig
    from ms_models.train.optimizer import MOMENTS
    from ms_models.train.step import Trainer

    config, layout = {**MORE, **TINY[name]}, ParallelLayout()
    mesh, family = Mesh.from_environment(layout), family_for_config(config)
    kind = auto._models.find(Path("model"), config)
    place = Place(mesh, family, config, spelling=kind.spelling)
    model = kind(kind.read_config(config, family), place)
    trainer = Trainer(model, mesh, OptimizerConfig(), jit=False)
    shapes = shapes_of(config)
    weights, gradients, kept = state_elements(shapes, shapes.stage(layout, 0), Choice(layout, 1, 1))
    assert weights == sum(parameter.size for parameter in model.trainable_params())
    assert gradients == sum(accumulator.size for accumulator in trainer.gradients.accumulators)
    assert set(trainer.optimizer.flat) == set(MOMENTS), "fp32 weights need no masters"
    for moment in MOMENTS:
        assert kept == sum(buffer.size for buffer in trainer.optimizer.flat[moment])
