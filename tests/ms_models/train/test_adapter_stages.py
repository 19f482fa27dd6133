"""Blocks of adapted models taken apart: stages of a pipeline, blocks computed again."""

from __future__ import annotations

import queue
import threading
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import ParameterTuple, Tensor

from mappings.layout import ParallelLayout
from ms_models.parallel.mesh import Mesh
from ms_models.parallel.pipeline import Pipeline
from ms_models.parallel.schedules.actions import Transfer
from ms_models.train.adapter.building import build_adapted
from ms_models.train.adapter.model import AdaptedModel
from ms_models.train.step import Trainer
from tests.ms_models.train.adapter_helpers import configured, with_model, write_repository
from tests.ms_models.train.adapter_models import SAME, batches, distance, gradients, stage, trainer_of


@pytest.fixture(scope="module", autouse=True)
def blocking() -> None:
    ms.runtime.launch_blocking()


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_repository(tmp_path_factory.mktemp("adapter") / "repository")


@pytest.mark.parametrize("layout", [ParallelLayout(pp=2), ParallelLayout(pp=3)], ids=str)
def test_stages_have_the_gradients_of_the_whole(layout: ParallelLayout, repository: Path, tmp_path: Path) -> None:
    trainer, micro_batches = trainer_of(repository, tmp_path), batches(1)
    expected = gradients(trainer, micro_batches)
    stages = [stage(repository, tmp_path, layout, rank) for rank in range(layout.pp)]
    ids, labels, mask = (Tensor(micro_batches[0][key]) for key in ("input_ids", "labels", "attention_mask"))
    inputs: list[Tensor | None] = [None]
    for model in stages:
        inputs.append(model.advance(inputs[-1], 0, ids, labels, mask))
    total = inputs.pop()
    assert total is not None and float(total.asnumpy()) == float(trainer.model.loss(ids, labels, mask)[0].asnumpy())
    count = int((micro_batches[0]["labels"] != -100).sum())
    seed: Tensor = Tensor(1 / count, ms.float32)
    found: dict[str, np.ndarray] = {}
    for model, x in zip(reversed(stages), reversed(inputs), strict=True):
        parameters = ParameterTuple(model.parameters_of(0))

        def weighted(x: Tensor | None, model: AdaptedModel = model, seed: Tensor = seed) -> Tensor:
            return (model.advance(x, 0, ids, labels, mask) * seed).sum()

        if x is None:
            _, of_weights = ms.value_and_grad(weighted, None, parameters)(x)
        else:
            _, (seed, of_weights) = ms.value_and_grad(weighted, 0, parameters)(x)
        for parameter, gradient in zip(parameters, of_weights, strict=True):
            held = model.held[parameter.name]
            assert parameter.name not in found or held.is_at_both_ends, f"{parameter.name} is there twice"
            found[parameter.name] = found.get(parameter.name, 0) + gradient.asnumpy()
    assert distance(found, expected) < SAME
    counted = [sum(model.held[name].is_counted for model in stages if name in model.held) for name in expected]
    assert counted == [1] * len(expected)  # once in the norm
    names = [p.name for p in stages[1].get_parameters()]
    assert not any(name.startswith("blocks.0.") for name in names) and any(n.startswith("blocks.") for n in names)


class Wires:
    """Carries tensors between the stages of one process, whose threads run one at a time."""

    def __init__(self) -> None:
        self.turn, self.sent = threading.Lock(), defaultdict[Any, queue.Queue[Tensor]](queue.Queue)

    def move(self, stage: Pipeline, transfer: Transfer, x: Tensor) -> Tensor:
        if transfer.source % stage.place.mesh.layout.pp == stage.stage:
            self.sent[transfer].put(x)
            return x
        self.turn.release()
        arrived = self.sent[transfer].get(timeout=60)
        self.turn.acquire()
        assert arrived.shape == x.shape and arrived.dtype == x.dtype
        return arrived

    def run(self, works: list[Callable[[], Any]]) -> list[Any]:
        def taking_turns(work: Callable[[], Any]) -> Any:
            with self.turn:
                return work()

        with ThreadPoolExecutor(len(works)) as pool:
            return [one.result() for one in [pool.submit(taking_turns, work) for work in works]]


@pytest.mark.parametrize(
    ("layout", "schedule"),
    [
        (ParallelLayout(pp=2), "1f1b"),
        (ParallelLayout(pp=3), "gpipe"),
        (ParallelLayout(pp=2), "zero_bubble"),
        (ParallelLayout(pp=2, vpp=2), "interleaved"),
    ],
    ids=lambda value: str(value),
)
def test_schedules_add_up_the_gradients_of_the_whole(
    layout: ParallelLayout, schedule: str, repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stages of a pipeline as threads of one process; processes are in tests/multi_process."""
    adapter, micro_batches = {"blocks": "blocks", "logits": 0, **with_model(layers=4)}, batches(4)
    reference = trainer_of(repository, tmp_path, adapter)
    expected, found = gradients(reference, micro_batches), dict[str, np.ndarray]()
    monkeypatch.setattr(Pipeline, "_move", lambda stage, transfer, x: wires.move(stage, transfer, x))
    wires, trainers = Wires(), []
    for rank in range(layout.pp):
        config = configured(repository, tmp_path, adapter, layout=layout.to_dict(), parallel={"schedule": schedule})
        subject = build_adapted(config, Mesh(layout, rank), None)
        trainers.append(Trainer(subject.model, Mesh(layout, rank), config.optimizer, jit=False))
    count = sum(int((batch["labels"] != -100).sum()) for batch in micro_batches)
    inputs = [tuple(Tensor(batch[key]) for key in ("input_ids", "attention_mask", "labels")) for batch in micro_batches]
    scale = Tensor(1 / count, ms.float32)
    sums = wires.run([partial(one._passes.accumulate, inputs, scale) for one in trainers])
    total = sum(float(one.asnumpy()) for one in sums[-1])
    assert total == pytest.approx(
        sum(float(reference.model.loss(i, t, m)[0].asnumpy()) for i, m, t in inputs), rel=1e-6
    )
    assert not any(sums[:-1])
    for trainer in trainers:
        for bucket, accumulator in zip(trainer.sharding.buckets, trainer.gradients.accumulators, strict=True):
            for name, value in bucket.named(accumulator.asnumpy()[0]).items():
                assert name not in found or trainer.model.held[name].is_at_both_ends
                found[name] = found.get(name, 0) + value
    assert distance(found, expected) < SAME
    measured = wires.run([partial(one._passes.evaluate, inputs) for one in trainers])
    losses, hits = np.array([one.asnumpy() for one in measured[-1]]).T
    assert losses.tolist() == [float(one.asnumpy()) for one in sums[-1]]
    assert hits.tolist() == [float(one.asnumpy()[1]) for one in reference._passes.evaluate(inputs)] and hits.any()


@pytest.mark.parametrize(
    "sections",
    [
        {"layout": {"zero": 3}},
        {"parallel": {"recompute": "block"}},
        pytest.param({"parallel": {"recompute": "block"}, "train": {"jit": True}}, marks=pytest.mark.slow),
    ],
    ids=["zero 3", "recompute", "compiled recompute"],
)
def test_blocks_that_are_computed_again_have_the_same_gradients(
    sections: dict[str, Any], repository: Path, tmp_path: Path
) -> None:
    expected = gradients(trainer_of(repository, tmp_path), batches(2))
    found = gradients(trainer_of(repository, tmp_path, {"blocks": "blocks"}, **sections), batches(2))
    assert distance(found, expected) < SAME
