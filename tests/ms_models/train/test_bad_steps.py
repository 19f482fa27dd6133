"""Steps that went wrong: which parameter and which layer is named, what is kept, and that nothing else changes."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, ops

from ms_models import AutoModelForCausalLM
from ms_models.data.loader import Batch, TrainingLoader
from ms_models.parallel.mesh import Mesh
from ms_models.train.bad_steps import BadSteps
from ms_models.train.batches import positions_of_last
from ms_models.train.config import GuardConfig, OptimizerConfig, PrecisionConfig
from ms_models.train.errors import RunError
from ms_models.train.guard import Guard
from ms_models.train.step import StepResult, Trainer
from tests.ms_models.train.run_helpers import write_data, write_model

CONFIG = OptimizerConfig(lr=0.01, clip_norm=1.0)


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    ms.runtime.launch_blocking()
    root = tmp_path_factory.mktemp("bad")
    return write_model(root / "model"), write_data(root / "data")


def trainer_of(paths: tuple[Path, Path], guard: GuardConfig | None = None, compute: Any = "fp32") -> Trainer:
    model = AutoModelForCausalLM.from_pretrained(paths[0], compute=compute)
    precision = PrecisionConfig(compute=compute, loss_scale=1.0)
    return Trainer(model, Mesh.single(), CONFIG, jit=False, guard=guard, precision=precision)


def loader(paths: tuple[Path, Path]) -> TrainingLoader:
    return TrainingLoader(paths[1], seed=7, micro_batch_size=2, accumulation=3)


def poison(trainer: Trainer, name: str, row: Any, value: Any) -> np.ndarray:
    """Sets rows of a parameter; gives the healthy values."""
    parameter = next(p for p in trainer.model.get_parameters() if p.name == name)
    healthy = parameter.asnumpy().copy()
    changed = healthy.copy()
    changed[row] = value
    ops.assign(parameter, Tensor(changed))
    return healthy


def taken(trainer: Trainer, batches: list[Batch], source: TrainingLoader, run: Path) -> tuple[StepResult, str, Any]:
    result = trainer.step(batches, 0.01)
    sentence = BadSteps(run, 4, trainer).take(5, result, batches, positions_of_last(source))
    return result, sentence, json.loads((run / "bad_steps" / "step_00000005" / "report.json").read_text())


def test_a_layer_that_overflows_is_named_with_its_micro_batch(paths: tuple[Path, Path], tmp_path: Path) -> None:
    """fp16: the last layer's gate is so large for one token that its output is infinite; weights are finite."""
    trainer, source = trainer_of(paths, compute="fp16"), loader(paths)
    batches = source.next_step()
    others = {int(t) for b in (batches[0], batches[2]) for t in b["input_ids"].ravel()}
    token = next(int(t) for t in batches[1]["input_ids"][:, 0] if int(t) not in others)
    poison(trainer, "model.embed_tokens.weight", token, 1e6)
    result, sentence, report = taken(trainer, batches, source, tmp_path)
    assert result.outcome == "non_finite", "the loss itself is not finite: no loss scale mends that"
    assert report["activation"] == {
        "rank": 0, "layer": "model.embed_tokens", "micro_batch": 1, "is_origin": True,
        "bad": report["activation"]["bad"], "size": 2 * 12 * 24,
    }  # fmt: skip
    assert "first layer that is not finite is model.embed_tokens on rank 0, micro-batch 1" in sentence
    folder = tmp_path / "bad_steps" / "step_00000005"
    with np.load(folder / "rank_0.npz") as kept:
        assert sorted(kept) == ["attention_mask", "input_ids", "labels", "positions"]
        assert np.array_equal(kept["input_ids"], np.stack([batch["input_ids"] for batch in batches]))
        assert np.array_equal(kept["positions"], np.arange(6).reshape(3, 2))
    losses = json.loads((folder / "rank_0.json").read_text())["losses"]
    assert [np.isfinite(float(loss)) for loss in losses] == [True, False, True]


def test_weights_that_are_not_finite_are_named_first(paths: tuple[Path, Path], tmp_path: Path) -> None:
    trainer, source = trainer_of(paths), loader(paths)
    healthy = poison(trainer, "model.layers.1.mlp.up_proj.weight", 3, np.nan)
    batches = source.next_step()
    _, sentence, report = taken(trainer, batches, source, tmp_path)
    assert report["weights"] == {"model.layers.1.mlp.up_proj.weight": 24}
    assert report["activation"]["layer"] == "model.layers.1.mlp.up_proj"
    assert sentence.startswith("Weights are not finite: model.layers.1.mlp.up_proj.weight; kept in")
    # Looking at it left no trace: no hook, nothing in the random generators or the weights.
    poisoned = next(p for p in trainer.model.get_parameters() if p.name == "model.layers.1.mlp.up_proj.weight")
    ops.assign(poisoned, Tensor(healthy))
    assert trainer.step(batches, 0.01) == trainer_of(paths).step(batches, 0.01)


def test_a_gradient_that_is_not_finite_is_traced_backward(
    paths: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """fp16 with the scale at its floor, and an incoming gradient beyond fp16: only gradients are not finite."""
    trainer, source = trainer_of(paths, compute="fp16"), loader(paths)
    batches = source.next_step()
    inner = trainer._passes.accumulate
    monkeypatch.setattr(trainer._passes, "accumulate", lambda given, scale: inner(given, scale * 1e9))
    result, sentence, report = taken(trainer, batches, source, tmp_path)
    assert (result.outcome, np.isfinite(result.loss), report["activation"]) == ("non_finite", True, None)
    assert "Activations are finite" in sentence and "that of lm_head.weight" in sentence
    assert next(iter(report["gradients"])) == "model.embed_tokens.weight"


def test_a_spike_is_left_out_kept_and_compared_with_what_was_before(paths: tuple[Path, Path], tmp_path: Path) -> None:
    guard = GuardConfig(spike="skip", spike_loss=0, spike_norm=3, spike_warmup=3, spike_window=5)
    trainer, source = trainer_of(paths, guard), loader(paths)
    norms = [trainer.step(source.next_step(), 0.001).grad_norm for _ in range(3)]
    poison(trainer, "lm_head.weight", slice(None), np.random.default_rng(0).standard_normal((53, 24)) * 5)
    before = {p.name: p.asnumpy().copy() for p in trainer.model.get_parameters()}
    result, sentence, report = taken(trainer, source.next_step(), source, tmp_path)
    assert result.outcome == "spike" and result.grad_norm > 3 * np.median(norms)
    assert "times the median" in str(result.reason) and "of the last 3 updates" in str(result.reason)
    assert report["grad_norms_before"] == norms
    squares = sum(entry["norm"] ** 2 for entry in report["gradients"].values())
    assert np.sqrt(squares) == pytest.approx(result.grad_norm, rel=1e-5), "the parts are those of the norm"
    assert sentence.startswith("Gradient norm ")
    assert trainer.optimizer.step == 3
    assert all(np.array_equal(p.asnumpy(), before[p.name]) for p in trainer.model.get_parameters())
    assert list(trainer.spikes.norms) == norms, "what is left out is not measured by"
    judge = Guard(guard)
    line = judge.judge(5, result, "positions 0..5", sentence)
    assert line is not None and "step skipped (1 in a row, 3 end the run)" in line and str(tmp_path) in line
    with pytest.raises(RunError, match=r"or set guard\.spike to skip"):
        Guard(GuardConfig(spike="stop")).judge(5, result, "positions 0..5")


def test_only_so_many_are_kept_over_restarts(paths: tuple[Path, Path], tmp_path: Path) -> None:
    trainer, source = trainer_of(paths), loader(paths)
    poison(trainer, "model.norm.weight", 0, np.nan)
    batches = source.next_step()
    result = trainer.step(batches, 0.01)
    for step in (1, 2, 3):
        BadSteps(tmp_path, 2, trainer).take(step, result, batches, positions_of_last(source))
    assert sorted(path.name for path in (tmp_path / "bad_steps").iterdir()) == ["step_00000001", "step_00000002"]


def test_a_full_disk_is_said_and_does_not_end_the_run(paths: tuple[Path, Path], tmp_path: Path) -> None:
    trainer, source = trainer_of(paths), loader(paths)
    poison(trainer, "model.norm.weight", 0, np.nan)
    batches = source.next_step()
    (tmp_path / "bad_steps").write_text("a file where the directory should be")
    result = trainer.step(batches, 0.01)
    sentence = BadSteps(tmp_path, 2, trainer).take(1, result, batches, positions_of_last(source))
    assert "could not be kept" in sentence


def test_what_another_rank_saw_is_what_this_one_tells(
    paths: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer, batches = trainer_of(paths), loader(paths).next_step()
    monkeypatch.setattr("ms_models.train.step.agree_all", lambda flags, mesh: [flags[0], True, flags[2]])
    result = trainer.step(batches, 0.01)
    assert result.outcome == "non_finite"
    assert math.isfinite(result.loss) and math.isnan(result.grad_norm)
