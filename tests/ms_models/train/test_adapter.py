"""Adapted models in one process: losses, gradients, stages, checkpoints, and what the first batch finds wrong."""

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
import torch
from mindspore import ParameterTuple, Tensor, nn

from mappings.arrangement import Arrangement
from mappings.cutting import cut, fill
from mappings.errors import UserError
from mappings.layout import ParallelLayout
from mappings.parallel_options import ParallelOptions
from ms_models.data.loader import Batch
from ms_models.parallel.mesh import Mesh
from ms_models.parallel.pipeline import Pipeline
from ms_models.parallel.schedules.actions import Transfer
from ms_models.train.adapter.building import build_adapted
from ms_models.train.adapter.forward import Forward
from ms_models.train.adapter.model import AdaptedModel
from ms_models.train.adapter.repository import Repository
from ms_models.train.adapter.tensors import Tensors, Whole
from ms_models.train.adapter.weights import load
from ms_models.train.checkpoints import checkpoint
from ms_models.train.checkpoints.run_directory import read_manifest
from ms_models.train.loop import run
from ms_models.train.services.metrics_file import read_metrics
from ms_models.train.step import Trainer
from tests.ms_models.train.adapter_helpers import GRID, configured, with_model, write_repository
from tests.ms_models.train.run_helpers import read_tensors, write_data

SAME = 2e-6  # of the norm of a gradient: the same sums in another order; measured at most 4e-7
DENSE = ("mix.weight", "mix.bias", "out.weight", "out.bias")
FAULT = 100  # a planted fault exceeds it this many times


@pytest.fixture(scope="module", autouse=True)
def blocking() -> None:
    ms.runtime.launch_blocking()


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_repository(tmp_path_factory.mktemp("adapter") / "repository")


def batches(count: int, seed: int = 0) -> list[Batch]:
    """Micro-batches of two rows with very unequal numbers of labels."""
    rng = np.random.default_rng(seed)
    result: list[Batch] = []
    for number in range(count):
        ids = rng.integers(0, 19, (2, 8)).astype(np.int32)
        labels = rng.integers(0, 19, (2, 8)).astype(np.int32)
        labels[:, : 2 * number] = -100
        result.append({"input_ids": ids, "labels": labels, "attention_mask": np.ones_like(ids)})
    return result


def gradients(trainer: Trainer, micro_batches: list[Batch]) -> dict[str, np.ndarray]:
    """Summed over the micro-batches, divided by the number of labels, by parameter."""
    count = sum(int((batch["labels"] != -100).sum()) for batch in micro_batches)
    trainer.gradients.zero()
    inputs = [tuple(Tensor(batch[key]) for key in ("input_ids", "attention_mask", "labels")) for batch in micro_batches]
    trainer._forward_backward(inputs, Tensor(1 / count, ms.float32))  # type: ignore[arg-type]
    return trainer.sharding.whole(trainer.gradients.reduce())


def trainer_of(repository: Path, tmp_path: Path, adapter: dict[str, Any] | None = None, **sections: Any) -> Trainer:
    config = configured(repository, tmp_path / "run", adapter, **sections)
    mesh = Mesh(config.layout)
    subject = build_adapted(config, mesh, None)
    return Trainer(subject.model, mesh, config.optimizer, jit=config.train.jit, count_valid=subject.count_valid)


def distance(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> float:
    """Largest difference of a gradient, relative to its norm."""
    assert set(found) == set(expected)
    for name, value in expected.items():
        assert np.abs(value).max() > 0, f"{name}: nothing is compared"
    return max(float(np.linalg.norm(found[n] - v) / np.linalg.norm(v)) for n, v in expected.items())


def test_the_loss_and_every_gradient_are_those_of_torch(repository: Path, tmp_path: Path) -> None:
    trainer, micro_batches = trainer_of(repository, tmp_path), batches(4)
    parameters = {p.name: torch.tensor(p.asnumpy(), requires_grad=True) for p in trainer.model.get_parameters()}
    total, count = torch.zeros(()), 0
    for batch in micro_batches:
        x = parameters["embed"][torch.tensor(batch["input_ids"], dtype=torch.long)]
        for block in range(3):
            dense = [parameters[f"blocks.{block}.{name}"] for name in DENSE]
            mean = torch.cumsum(torch.nn.functional.linear(x, *dense[:2]) * parameters["table"], 1) * 0.5
            x = x + torch.nn.functional.linear(torch.relu(mean), *dense[2:])
        logits = (x * parameters["scale"]) @ parameters["embed"].T
        labels = torch.tensor(batch["labels"], dtype=torch.long)
        total = total + torch.nn.functional.cross_entropy(logits.reshape(-1, 19), labels.reshape(-1), reduction="sum")
        count += int((labels != -100).sum())
    (total / count).backward()
    expected = {name: p.grad.numpy() for name, p in parameters.items() if name != "table"}  # type: ignore[union-attr]
    assert distance(gradients(trainer, micro_batches), expected) < SAME
    result = trainer.step(micro_batches, 1e-3)
    assert result.tokens == count and result.loss == pytest.approx(total.item() / count, rel=1e-6)


@pytest.mark.parametrize(
    "adapter",
    [
        {"output": "logits", "select": 0},
        {"output": "logits", "select": None, "inputs": {"input_ids": "ids"}},
        {"output": "logits", "select": "logits", "constants": {"as_dict": True}},
        {"select": "loss", "constants": {"as_dict": True}},
    ],
)
def test_every_way_to_the_loss_gives_the_same_gradients(
    adapter: dict[str, Any], repository: Path, tmp_path: Path
) -> None:
    expected = gradients(trainer_of(repository, tmp_path), batches(4))
    assert distance(gradients(trainer_of(repository, tmp_path, adapter), batches(4)), expected) < SAME


def test_compiled_is_what_is_run_operator_by_operator(repository: Path, tmp_path: Path) -> None:
    expected = gradients(trainer_of(repository, tmp_path), batches(4))
    assert distance(gradients(trainer_of(repository, tmp_path, train={"jit": True}), batches(4)), expected) < SAME


def test_a_mean_of_means_is_detected(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault: each micro-batch weighs the same, however many labels it has."""
    expected = gradients(trainer_of(repository, tmp_path), batches(4))

    def mean_of_means(self: Forward, ids: Tensor, labels: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        count = (labels != -100).astype(ms.float32).sum()
        return self.selected(self.call(ids, labels, mask)) * 10.0, count

    monkeypatch.setattr(Forward, "construct", mean_of_means)
    found = gradients(trainer_of(repository, tmp_path), batches(4))
    scale = np.linalg.norm(expected["embed"]) / np.linalg.norm(found["embed"])  # not a matter of scale alone
    assert distance({name: value * scale for name, value in found.items()}, expected) > FAULT * SAME


def test_a_micro_batch_without_labels_changes_nothing(repository: Path, tmp_path: Path) -> None:
    trainer, micro_batches = trainer_of(repository, tmp_path), batches(2)
    expected = gradients(trainer, micro_batches)
    empty = {**batches(1, 9)[0], "labels": np.full((2, 8), -100, np.int32)}
    found = gradients(trainer, [*micro_batches, empty])
    assert all(np.array_equal(found[name], value) for name, value in expected.items())
    assert float(trainer.model.loss(*(Tensor(empty[key]) for key in ("input_ids", "labels")))[0].asnumpy()) == 0


def test_dropout_is_on_in_training_also_after_an_evaluation(repository: Path, tmp_path: Path) -> None:
    trainer = trainer_of(repository, tmp_path, with_model(dropout=0.5))
    inputs = [Tensor(batches(1)[0][key]) for key in ("input_ids", "labels")]

    def losses() -> set[float]:
        return {float(trainer.model.loss(*inputs)[0].asnumpy()) for _ in range(3)}

    assert len(losses()) == 3
    trainer.evaluate(batches(1))
    assert len(losses()) == 3
    trainer.model.set_train(False)
    assert len(losses()) == 1


def test_labels_are_shifted_where_forward_does_not(repository: Path, tmp_path: Path) -> None:
    """Prepared data has the token itself as the label of a position."""
    data = write_data(tmp_path / "data")  # its ids go beyond this model's vocabulary, which is made larger
    prepared = {"batches": None, **with_model(vocab=60)}
    rows = {"data": {"path": str(data)}, "train": {"micro_batch_size": 2}}
    config = configured(repository, tmp_path / "run", {**prepared, "ignore_index": -1}, **rows)
    with pytest.raises(UserError, match=r"table|broadcast|failed on a batch"):
        build_adapted(config, Mesh.single(), None)  # 12 positions, the model has a table of 8
    labels = np.array([[-100, 5, 6, -100]], np.int32)
    batch = {"input_ids": labels, "attention_mask": labels, "labels": labels}
    from ms_models.train.adapter.building import Labels

    for kind, expected, count in (("next", [[5, 6, -7, -7]], 2), ("same", [[-7, 5, 6, -7]], 2)):
        adapter = configured(repository, tmp_path, {"batches": None, "labels": kind, "ignore_index": -7}, **rows)
        assert adapter.model.adapter is not None
        convert = Labels(adapter.model.adapter)
        made = convert(batch, np.zeros(1))["labels"]
        assert made.tolist() == expected and convert.count(made) == count


def stage(repository: Path, tmp_path: Path, layout: ParallelLayout, rank: int) -> AdaptedModel:
    config = configured(repository, tmp_path / "run", {"blocks": "blocks"}, layout=layout.to_dict())
    subject = build_adapted(config, Mesh(layout, rank), None)
    model = subject.model
    assert isinstance(model, AdaptedModel)
    return model


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
    adapter, micro_batches = {"blocks": "blocks", **with_model(layers=4)}, batches(4)
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
    losses = wires.run([partial(one._passes.evaluate, inputs) for one in trainers])
    assert [float(one.asnumpy()) for one in losses[-1]] == [float(one.asnumpy()) for one in sums[-1]]


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
    run(parts, resume=tmp_path / "parts" / "step_00000002")
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


@pytest.mark.parametrize(
    ("adapter", "sections", "expected"),
    [
        ({"select": None}, {}, r"returns \(Tensor \[2, 8, 19\], Tensor \[\]\); .* is no floating"),
        ({"select": 2}, {}, "has no 2"),
        ({"select": "loss"}, {}, "has no 'loss'"),
        ({"select": 0}, {}, r"output: the loss of forward of Model is not one number but has shape \(2, 8, 19\)"),
        ({"output": "logits"}, {}, r"output: the logits of forward of Model have shape \(\)"),
        ({"inputs": {"input_ids": "ids", "labels": "as_dict"}}, {}, r"not one number but has shape \(8, 19\)"),
        ({"class_name": "no_cell", "arguments": {"config": 1}}, {}, "made a int, which is no mindspore.nn.Cell"),
        ({"arguments": {}}, {}, "Model does not take these arguments: TypeError: missing"),
        (with_model(depth=2), {}, "Config does not take these arguments"),
        (with_model(width="wide"), {}, "Model failed"),
        ({"class_name": "Other"}, {}, "has no 'Other'"),
        ({"blocks": "layers"}, {}, "Model has no cell 'layers'; it has blocks"),
        ({"blocks": "blocks.0"}, {}, "'blocks.0' is a Block, not a list of blocks"),
        ({"blocks": "blocks"}, {"layout": {"pp": 4}}, "the model has 3 blocks; pp=3 would fit"),
        ({}, {"layout": {"tp": 2}}, "tp=2, but no layer of Model is cut"),
        ({"blocks": "blocks", **with_model(learned=True)}, {"layout": {"zero": 3}}, "a tensor made of table beside"),
        ({"blocks": "blocks", **with_model(dropout=0.5)}, {"layout": {"zero": 3}}, "forward draws random numbers"),
        (with_model(counts=True), {}, "forward changes the buffer seen while it trains"),
        ({"batches": {"function": "adapter_tiny_data:odd"}}, {}, "yields ndarray, expected"),
        ({"batches": {"function": "adapter_tiny_data:loaders", "train": 5}}, {}, "tuple of 2, which has nothing at"),
        ({"batches": {"function": "adapter_tiny_data:loaders", "arguments": {"n": 1}}}, {}, "does not take these"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_one_line(
    adapter: dict[str, Any], sections: dict[str, Any], expected: str, repository: Path, tmp_path: Path
) -> None:
    config = configured(repository, tmp_path / "run", adapter, **sections)
    with pytest.raises(UserError, match=expected) as caught:
        build_adapted(config, Mesh(config.layout), None)
    assert "\n" not in str(caught.value)


def test_batches_that_end_say_so(repository: Path, tmp_path: Path) -> None:
    config = configured(repository, tmp_path / "run", {"batches": {"function": "adapter_tiny_data:short"}})
    loader = build_adapted(config, Mesh.single(), None).loader
    with pytest.raises(UserError, match="yields no more rows after 2; make it endless, or lower train"):
        loader.next_step()


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
