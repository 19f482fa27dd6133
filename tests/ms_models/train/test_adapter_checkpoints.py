"""Checkpoints of adapted models: resumed, cut anew, and whole at the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn

from mappings.arrangement import Arrangement
from mappings.cutting import cut, fill
from mappings.errors import UserError
from mappings.layout import ParallelLayout
from mappings.parallel_options import ParallelOptions
from migrate.weights.containers import sharded
from ms_models.parallel.mesh import Mesh
from ms_models.train.adapter.building import build_adapted
from ms_models.train.adapter.model import AdaptedModel
from ms_models.train.adapter.repository import Repository
from ms_models.train.adapter.tensors import Tensors, Whole
from ms_models.train.adapter.weights import load
from ms_models.train.checkpoints import checkpoint
from ms_models.train.checkpoints.run_directory import read_manifest
from ms_models.train.loop import run
from ms_models.train.services.metrics_file import read_metrics
from ms_models.train.step import Trainer
from tests.ms_models.train.adapter_helpers import GRID, configured, write_repository
from tests.ms_models.train.adapter_models import stage
from tests.ms_models.train.run_helpers import read_tensors


@pytest.fixture(scope="module", autouse=True)
def blocking() -> None:
    ms.runtime.launch_blocking()


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_repository(tmp_path_factory.mktemp("adapter") / "repository")


def curve(directory: Path) -> list[dict[str, Any]]:
    """What is the same however long a step took."""
    keys = ("step", "loss", "grad_norm", "eval_loss", "tokens")
    records = [{k: r[k] for k in keys if k in r} for r in read_metrics(directory / "metrics.jsonl")]
    return [record for record in records if "loss" in record or "eval_loss" in record]


def test_a_resumed_run_is_the_uninterrupted_one_and_the_repository_loads_the_end(
    repository: Path, tmp_path: Path
) -> None:
    sections = {"train": {"eval_every": 2, "steps": 4}, "checkpoint": {"every": 1}, "schedule": {"warmup_steps": 1}}
    for name in ("whole", "parts"):
        (tmp_path / name / "logs").mkdir(parents=True)
    whole = configured(repository, tmp_path / "whole", **sections)
    parts = configured(repository, tmp_path / "parts", **sections)
    run(whole)
    run(parts, stop_after=2)
    assert not (tmp_path / "parts" / "weights.safetensors").exists()
    with pytest.raises(UserError, match=r"has not reached its last step, .* go on with --resume"):
        sharded.read(tmp_path / "parts" / "step_00000002")
    run(parts, resume=tmp_path / "parts" / "step_00000002")
    with pytest.raises(UserError, match=r"by the names of the code, are in .*parts/weights\.safetensors"):
        sharded.read(tmp_path / "parts" / "step_00000004")
    curves = [curve(tmp_path / name) for name in ("whole", "parts")]
    assert curves[0] == curves[1] and sum("eval_loss" in record for record in curves[0]) == 2
    for file in ("step_00000004/model-rank00000.safetensors", "step_00000004/optimizer-rank00000.safetensors"):
        assert (tmp_path / "whole" / file).read_bytes() == (tmp_path / "parts" / file).read_bytes()
    values = read_tensors(tmp_path / "whole" / "weights.safetensors")
    assert whole.model.adapter is not None
    module = Repository(whole.model.adapter, Mesh.single()).build()
    left, unused = ms.load_param_into_net(module, {name: ms.Parameter(Tensor(v)) for name, v in values.items()})
    assert not left and not unused
    assert {p.name: p.asnumpy().tobytes() for p in module.get_parameters()} == {
        n: v.tobytes() for n, v in values.items()
    }
    again = configured(repository, tmp_path / "again", {"weights": str(tmp_path / "whole" / "weights.safetensors")})
    model = build_adapted(again, Mesh.single(), None).model
    assert all(np.array_equal(p.asnumpy(), values[p.name]) for p in model.get_parameters())


def test_a_checkpoint_fills_the_stages_of_another_layout(repository: Path, tmp_path: Path) -> None:
    (tmp_path / "run" / "logs").mkdir(parents=True)
    config = configured(repository, tmp_path / "run", train={"steps": 1}, schedule={"warmup_steps": 0})
    run(config)
    values = read_tensors(tmp_path / "run" / "weights.safetensors")
    for rank in range(2):
        model = stage(repository, tmp_path, ParallelLayout(pp=2), rank)
        directory = tmp_path / "run" / "step_00000001"
        load(model, directory)
        assert all(np.array_equal(p.asnumpy(), values[p.name]) for p in model.get_parameters())
        trainer = Trainer(model, model.mesh, config.optimizer, jit=False)
        checkpoint.load(directory, read_manifest(directory), trainer, config.train.seed)
        states = read_tensors(directory / "optimizer-rank00000.safetensors")
        found = trainer.optimizer.state()
        assert trainer.optimizer.step == 1 and len(found) == 2 * len(model.trainable_params())
        assert all(np.array_equal(value, states[name]) and np.abs(value).max() > 0 for name, value in found.items())


@pytest.mark.parametrize("layout", GRID, ids=str)
def test_ranks_together_hold_every_element(layout: ParallelLayout) -> None:
    wholes = (
        Whole("embed", (7, 3), 0, (7,)),
        Whole("blocks.0.qkv", (12, 3), 0, (4, 4, 4), 0),
        Whole("blocks.1.out", (3, 8), 1, (8,), 1),
        Whole("blocks.2.norm", (3,), None, (), 2),
        Whole("scalar", ()),
    )
    tensors = Tensors(wholes, 3)
    rng = np.random.default_rng(0)
    values = {one.name: rng.standard_normal(one.shape).astype(np.float32) for one in wholes}
    for states in (False, True):
        found = {one.name: np.full(one.shape, np.nan, np.float32) for one in wholes}
        for rank in range(layout.world_size):
            for name, held in tensors.stored(layout, rank, states=states).items():
                target = Arrangement.of(name, values[name].shape)
                fill(found[name], target, cut(values[name], target, held), held)
        assert all(np.array_equal(found[name], value) for name, value in values.items())
    assert Tensors.read(_dumped(tensors)).wholes == wholes


def _dumped(tensors: Tensors) -> Path:
    import tempfile

    directory = Path(tempfile.mkdtemp())
    (directory / "adapter.json").write_bytes(tensors.dump())
    return directory


def test_weights_that_do_not_fit_are_listed(repository: Path, tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    config = configured(repository, tmp_path / "run")
    assert config.model.adapter is not None
    module = Repository(config.model.adapter, Mesh.single()).build()
    model = AdaptedModel(module, config.model.adapter, Mesh.single(), ParallelOptions())
    values = {p.name: p.asnumpy() + 1 for p in model.get_parameters()}
    values["scale"] = np.zeros(5, np.float32)
    values["more"] = values.pop("embed")
    before = {p.name: p.asnumpy().copy() for p in model.get_parameters()}
    save_file(values, tmp_path / "bad.safetensors")
    with pytest.raises(UserError, match=r"missing: embed; unexpected: more; wrong shape: scale \[5\] instead of \[6\]"):
        load(model, tmp_path / "bad.safetensors")
    assert all(np.array_equal(p.asnumpy(), before[p.name]) for p in model.get_parameters())
    assert isinstance(module, nn.Cell)
