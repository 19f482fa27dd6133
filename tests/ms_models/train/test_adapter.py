"""Adapted models in one process: losses and gradients, and what the first batch finds wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
import torch
from mindspore import Tensor

from mappings.errors import UserError
from ms_models.parallel.mesh import Mesh
from ms_models.train.adapter.building import build_adapted
from ms_models.train.adapter.forward import Forward
from tests.ms_models.train.adapter_helpers import configured, with_model, write_repository
from tests.ms_models.train.adapter_models import DENSE, FAULT, SAME, batches, distance, gradients, trainer_of
from tests.ms_models.train.run_helpers import write_data


@pytest.fixture(scope="module", autouse=True)
def blocking() -> None:
    ms.runtime.launch_blocking()


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_repository(tmp_path_factory.mktemp("adapter") / "repository")


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


@pytest.mark.parametrize(
    ("adapter", "jit"),
    [
        ({"select": 1, "logits": 0}, False),
        ({"select": 1, "logits": 0}, True),
        ({"output": "logits", "select": 0}, False),
        ({"select": "loss", "logits": "logits", "constants": {"as_dict": True}}, False),
    ],
)
def test_an_evaluation_counts_hits_where_logits_are_known(
    adapter: dict[str, Any], jit: bool, repository: Path, tmp_path: Path
) -> None:
    trainer, micro_batches = trainer_of(repository, tmp_path, adapter, train={"jit": jit}), batches(3)
    forward, hits, count = trainer.model.forward_of, 0, 0
    for batch in micro_batches:
        output = forward.module(Tensor(batch["input_ids"]), Tensor(batch["labels"]))
        counted = batch["labels"] != -100
        hits += int(((output[0].asnumpy().argmax(-1) == batch["labels"]) & counted).sum())
        count += int(counted.sum())
    found = trainer.evaluate(micro_batches)
    assert (found.hits, found.tokens) == (hits, count) and 0 < hits < count
    without = trainer_of(repository, tmp_path).evaluate(micro_batches)
    assert without.hits is None and without.loss == pytest.approx(found.loss, rel=1e-6)


def test_prompts_are_continued_by_the_likeliest_tokens(repository: Path, tmp_path: Path) -> None:
    model = trainer_of(repository, tmp_path, {"select": 1, "logits": 0}).model
    ids, mask = np.array([[0, 0, 3, 7], [5, 1, 2, 11]], np.int32), np.array([[0, 0, 1, 1], [1, 1, 1, 1]], np.int32)
    found = model.generate(Tensor(ids), 3, Tensor(mask)).asnumpy()
    assert found[:, :4].tolist() == ids.tolist()
    for row, start in ((0, 2), (1, 0)):
        for end in range(4, 7):
            known = Tensor(found[row : row + 1, start:end])
            logits = model.forward_of.module(known, known)[0].asnumpy()
            assert found[row, end] == logits[0, -1].argmax()
    assert not hasattr(trainer_of(repository, tmp_path).model, "generate")


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


@pytest.mark.parametrize(
    ("adapter", "sections", "expected"),
    [
        ({"select": None}, {}, r"returns \(Tensor \[2, 8, 19\], Tensor \[\]\); .* is no floating"),
        ({"select": 2}, {}, "has no 2"),
        ({"select": "loss"}, {}, "has no 'loss'"),
        ({"select": 0}, {}, r"output: the loss of forward of Model is not one number but has shape \(2, 8, 19\)"),
        ({"logits": 5}, {}, r"logits: forward of Model returns .* which has no 5"),
        ({"logits": 1}, {}, r"logits: what is at 1 of forward of Model have shape \(\)"),
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
        ({"batches": {"function": "adapter_tiny_data:loaders", "train": 5}}, {}, r"\), which has nothing at"),
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
