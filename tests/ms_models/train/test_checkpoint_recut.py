"""What each rank of a layout holds after `--reshard`, weights and optimizer, against the cut of the weight tool.

No rank communicates while it loads, so one process stands for each of them in turn.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mappings.errors import UserError
from mappings.formats.manifest import optimizer_file
from mappings.formats.safetensors import read_header
from mappings.layout import ParallelLayout
from ms_models import AutoModelForCausalLM
from ms_models.parallel.mesh import Mesh
from ms_models.train.checkpoints import stored_state
from ms_models.train.config import OptimizerConfig
from ms_models.train.step import Trainer
from tests.ms_models.train.test_checkpoint_pieces import LAYOUTS, Cut

# By index in LAYOUTS: from, to. All pairs with `-m grid`.
FEW = {("llama", 5, 1), ("llama", 4, 3), ("deepseek", 2, 1)}
PAIRS = [
    pytest.param(model, a, b, marks=[] if (model, a, b) in FEW else pytest.mark.grid)
    for model, layouts in LAYOUTS.items()
    for a in range(len(layouts))
    for b in range(len(layouts))
    if a != b
]


@pytest.fixture(scope="module")
def cuts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Cut]:
    return {model: Cut(model, tmp_path_factory.mktemp(model)) for model in LAYOUTS}


def loaded(directory: Path, stored: ParallelLayout, mesh: Mesh) -> dict[str, np.ndarray]:
    """Weights and optimizer states of a rank."""
    model = AutoModelForCausalLM.from_pretrained(directory, mesh, recut=True)
    weights = {f"weight.{parameter.name}": parameter.asnumpy().copy() for parameter in model.get_parameters()}
    trainer = Trainer(model, mesh, OptimizerConfig(), jit=False)
    stored_state.load_states(
        trainer, lambda rank: (path := directory / optimizer_file(rank), read_header(path)[0]), 7, stored
    )
    assert trainer.optimizer.step == 7
    return weights | {name: value.copy() for name, value in trainer.optimizer.state().items()}


@pytest.mark.parametrize(("model", "before", "now"), PAIRS)
def test_every_rank_has_what_the_tool_cuts_for_it(cuts: dict[str, Cut], model: str, before: int, now: int) -> None:
    cut = cuts[model]
    layout = cut.layouts[now]
    for rank in range(layout.world_size):
        mesh = Mesh(layout, rank)
        expected = loaded(cut.directories[now], layout, mesh)
        found = loaded(cut.directories[before], cut.layouts[before], mesh)
        assert found.keys() == expected.keys()
        assert len(found) > 20
        for name, value in expected.items():
            assert np.array_equal(found[name], value), f"rank {rank}: {name}"


def test_without_being_asked_no_model_is_cut_anew(cuts: dict[str, Cut]) -> None:
    cut = cuts["llama"]
    with pytest.raises(UserError, match="sharded for tp=4, this run has tp=1"):
        AutoModelForCausalLM.from_pretrained(cut.directories[5])
