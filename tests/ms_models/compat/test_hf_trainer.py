"""The trainer of ms_models/compat against that of transformers, on one linear layer; what differs in settings shows."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mindspore as ms
import numpy as np
import pytest
import torch
import transformers
from mindspore import Tensor
from mindspore.graph.api import _pynative_executor

from ms_models.compat import hf_callbacks, hf_trainer_steps
from ms_models.compat.accelerator import Accelerator
from ms_models.compat.data import DataLoader
from ms_models.compat.hf_special_tokens import align_special_tokens
from ms_models.compat.hf_trainer import Trainer
from ms_models.compat.label_smoother import LabelSmoother
from ms_models.compat.layers import Dropout, Linear
from ms_models.compat.losses import cross_entropy
from ms_models.compat.module import Module
from ms_models.compat.optim import SGD
from ms_models.compat.schedulers import LambdaLR
from ms_models.compat.training_arguments import TrainingArguments

FEATURES, CLASSES = 4, 3
WEIGHT = np.random.default_rng(0).standard_normal((CLASSES, FEATURES)).astype(np.float32) * 0.3


class TorchModel(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = torch.nn.Linear(FEATURES, CLASSES)
        self.dropout = torch.nn.Dropout(0.0)
        self.config = None
        with torch.no_grad():
            self.head.weight.copy_(torch.from_numpy(WEIGHT))
            self.head.bias.zero_()

    def forward(self, x: Any, labels: Any = None, **kwargs: Any) -> dict[str, Any]:
        logits = self.head(self.dropout(x))
        if labels is None:
            return {"logits": logits}
        count = kwargs.get("num_items_in_batch")
        reduced = {"reduction": "mean"} if count is None else {"reduction": "sum"}
        loss = torch.nn.functional.cross_entropy(logits, labels, **reduced) / (1 if count is None else count)
        return {"loss": loss, "logits": logits}


class Model(Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.head = Linear(FEATURES, CLASSES)
        self.dropout = Dropout(dropout)
        self.head.weight.set_data(Tensor(WEIGHT))
        self.head.bias.set_data(Tensor(np.zeros(CLASSES, np.float32)))

    def construct(self, x: Any, labels: Any = None, **kwargs: Any) -> dict[str, Any]:
        logits = self.head(self.dropout(x))
        if labels is None:
            return {"logits": logits}
        count = kwargs.get("num_items_in_batch")
        loss = cross_entropy(logits, labels, reduction="mean" if count is None else "sum")
        return {"loss": loss if count is None else loss / count, "logits": logits}


def rows(count: int, seed: int = 0) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    return [
        {"x": rng.standard_normal(FEATURES).astype(np.float32), "label": int(rng.integers(CLASSES)), "unused": "text"}
        for _ in range(count)
    ]


BASE = {
    "per_device_train_batch_size": 2,
    "learning_rate": 0.05,
    "logging_steps": 1,
    "max_steps": 4,
    "save_strategy": "no",
    "report_to": "none",
    "disable_tqdm": True,
    "weight_decay": 0.1,
}


def history(trainer: Any) -> list[dict[str, float]]:
    timed = ("runtime", "per_second", "_time", "flos")
    return [{k: v for k, v in entry.items() if not k.endswith(timed)} for entry in trainer.state.log_history]


def ours(directory: Path, dropout: float = 0.0, trainer: type[Trainer] = Trainer, **settings: Any) -> Trainer:
    more = {k: settings.pop(k) for k in ("callbacks", "compute_metrics", "compute_loss_func") if k in settings}
    args = TrainingArguments(str(directory), **{**BASE, **settings})
    return trainer(Model(dropout), args, train_dataset=rows(7), eval_dataset=rows(5, 1), **more)


def theirs(directory: Path, **settings: Any) -> Any:
    more = {k: settings.pop(k) for k in ("callbacks", "compute_metrics", "compute_loss_func") if k in settings}
    args = transformers.TrainingArguments(str(directory), use_cpu=True, **{**BASE, **settings})
    return transformers.Trainer(TorchModel(), args, train_dataset=rows(7), eval_dataset=rows(5, 1), **more)


def assert_equal(found: list[dict[str, float]], expected: list[dict[str, float]]) -> None:
    assert [list(entry) for entry in found] == [list(entry) for entry in expected]
    for entry, other in zip(found, expected, strict=True):
        for key, value in other.items():
            assert entry[key] == pytest.approx(value, rel=1e-5, abs=1e-6), key  # float32 sums of a few terms


SETTINGS: list[dict[str, Any]] = [
    {"gradient_accumulation_steps": 3, "max_steps": -1, "num_train_epochs": 1.5, "logging_steps": 0.5},
    {"optim": "sgd", "optim_args": "momentum=0.8,nesterov=true", "max_grad_norm": 0.1},
    {"optim": "adagrad", "dataloader_drop_last": True, "lr_scheduler_type": "polynomial"},
    {"optim": "rmsprop", "data_seed": 3, "logging_strategy": "epoch", "max_grad_norm": 0},
    {"eval_strategy": "steps", "eval_steps": 2, "per_device_eval_batch_size": 2, "eval_on_start": True,
     "lr_scheduler_type": "reduce_lr_on_plateau", "lr_scheduler_kwargs": {"patience": 0, "threshold": 1.0}},
    {"logging_first_step": True, "logging_steps": 3, "eval_strategy": "epoch", "eval_delay": 1, "seed": 5},
]  # fmt: skip


@pytest.mark.parametrize("settings", SETTINGS, ids=[next(iter(s)) + str(n) for n, s in enumerate(SETTINGS)])
def test_history(settings: dict[str, Any], tmp_path: Path) -> None:
    reference, trainer = theirs(tmp_path / "torch", **settings), ours(tmp_path / "mindspore", **settings)
    expected, found = reference.train(), trainer.train()
    assert_equal(history(trainer), history(reference))
    assert found.global_step == expected.global_step
    assert found.training_loss == pytest.approx(expected.training_loss, rel=1e-5)


FAULTS = {
    "the loss is not divided by the batches of an update": (
        "_get_num_items_in_batch",
        lambda self, batches, device: Tensor(2),
    ),
    "gradients are left out of the norm": (
        "_update",
        lambda self, model, epoch: (setattr(self.model.head.bias, "grad", None), UPDATE(self, model, epoch))[1],
    ),
    "the rate is logged after the schedule": ("_get_learning_rate", lambda self: self.lr_scheduler.get_lr()[0] + 1e-6),
}
UPDATE = hf_trainer_steps.TrainerSteps._update


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_shows(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name, planted = FAULTS[fault]
    monkeypatch.setattr(Trainer, name, planted)
    settings = {"gradient_accumulation_steps": 2, "max_steps": 2}
    reference, trainer = theirs(tmp_path / "torch", **settings), ours(tmp_path / "mindspore", **settings)
    reference.train()
    trainer.train()
    with pytest.raises(AssertionError):
        assert_equal(history(trainer), history(reference))


def test_an_interrupted_training_goes_on_with_its_random_numbers(tmp_path: Path) -> None:
    """Dropout, shuffling, optimizer and schedule: the second half of a run is that of the whole run."""
    settings: dict[str, Any] = {"save_strategy": "steps", "save_steps": 2, "max_steps": 6, "seed": 3}
    whole = ours(tmp_path, 0.5, **settings)
    whole.train()
    rest = ours(tmp_path, 0.5, **settings)
    ms.manual_seed(99)
    rest.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert history(rest)[:-1] == history(whole)[:-1]
    assert (rest.model.head.weight.asnumpy() == whole.model.head.weight.asnumpy()).all()
    (tmp_path / "checkpoint-2" / "rng_state_mindspore.pth").unlink()
    other = ours(tmp_path, 0.5, **settings)
    ms.manual_seed(99)
    other.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert history(other)[:-1] != history(whole)[:-1]


def test_a_training_goes_on_where_transformers_stopped(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"save_strategy": "steps", "save_steps": 3, "max_steps": 6}
    reference = theirs(tmp_path, **settings)
    reference.train()
    trainer = ours(tmp_path, **settings)
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert [e.get("loss") for e in history(trainer)][:3] == [e.get("loss") for e in history(reference)][:3]
    assert_equal([dict(sorted(e.items())) for e in history(trainer)[:-1]],
                 [dict(sorted(e.items())) for e in history(reference)[:-1]])  # fmt: skip


def test_transformers_goes_on_where_the_trainer_stopped(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"save_strategy": "steps", "save_steps": 3, "max_steps": 6}
    trainer = ours(tmp_path, **settings)
    trainer.train()
    reference = theirs(tmp_path, **settings)
    reference.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert_equal([dict(sorted(e.items())) for e in history(trainer)[:-1]],
                 [dict(sorted(e.items())) for e in history(reference)[:-1]])  # fmt: skip


def test_checkpoints_that_stay(tmp_path: Path) -> None:
    trainer = ours(tmp_path, save_strategy="steps", save_steps=1, save_total_limit=2)
    trainer.train()
    assert sorted(path.name for path in tmp_path.glob("checkpoint-*")) == ["checkpoint-3", "checkpoint-4"]
    held = {path.name for path in (tmp_path / "checkpoint-4").iterdir()}
    assert held >= {"model.safetensors", "optimizer.pt", "scheduler.pt", "trainer_state.json", "training_args.json"}
    with pytest.raises(ValueError, match="No valid checkpoint"):
        ours(tmp_path / "empty").train(resume_from_checkpoint=True)


def test_gradient_functions_beside_the_training_do_no_harm(tmp_path: Path) -> None:
    """MindSpore's own switch off the recording that `loss.backward()` needs."""

    def differentiate() -> None:
        ms.grad(lambda x: x * x)(Tensor(1.0))
        assert not _pynative_executor.grad_flag()

    class Differentiates(hf_callbacks.TrainerCallback):
        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            differentiate()

    differentiate()
    trainer = ours(tmp_path, callbacks=[Differentiates()], max_steps=3)
    trainer.train()
    assert trainer.state.global_step == 3
    differentiate()
    Accelerator().prepare(Linear(FEATURES, CLASSES))
    assert _pynative_executor.grad_flag()


def test_a_loss_function_gets_the_number_of_labels(tmp_path: Path) -> None:
    seen: dict[str, list[float]] = {"torch": [], "mindspore": []}

    def torch_loss(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Any:
        seen["torch"].append(float(num_items_in_batch))
        return torch.nn.functional.cross_entropy(outputs["logits"], labels, reduction="sum") / num_items_in_batch

    def loss(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Any:
        seen["mindspore"].append(float(num_items_in_batch))
        return cross_entropy(outputs["logits"], labels, reduction="sum") / num_items_in_batch

    settings = {"gradient_accumulation_steps": 3, "max_steps": 2}
    reference = theirs(tmp_path / "torch", compute_loss_func=torch_loss, **settings)
    trainer = ours(tmp_path / "mindspore", compute_loss_func=loss, **settings)
    reference.train()
    trainer.train()
    assert seen["mindspore"] == seen["torch"]
    assert set(seen["torch"]) == {6.0, 1.0}  # seven rows: three batches of two, and one row
    assert_equal(history(trainer), history(reference))


def test_callbacks_see_the_same_events(tmp_path: Path) -> None:
    def watcher(base: type) -> Any:
        seen: list[Any] = []

        def note(name: str) -> Any:
            def event(self: Any, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
                seen.append((name, state.global_step, sorted(k for k in kwargs if k in ("logs", "metrics"))))
                if name == "on_step_end" and state.global_step == 3:
                    control.should_training_stop = True
                    return control
                return None

            return event

        made = type("Watcher", (base,), {name: note(name) for name in hf_callbacks.EVENTS})()
        return made, seen

    settings = {"eval_strategy": "steps", "eval_steps": 2, "gradient_accumulation_steps": 2, "save_strategy": "epoch"}
    expected, found = watcher(transformers.TrainerCallback), watcher(hf_callbacks.TrainerCallback)
    theirs(tmp_path / "torch", callbacks=[expected[0]], **settings).train()
    ours(tmp_path / "mindspore", callbacks=[found[0]], **settings).train()
    assert found[1] == expected[1]
    assert len(found[1]) > 20
    assert set(hf_callbacks.EVENTS) == {name for name in dir(transformers.TrainerCallback) if name.startswith("on_")}


@pytest.mark.parametrize("shift", [False, True])
@pytest.mark.parametrize("count", [None, 5])
def test_label_smoothing(shift: bool, count: int | None) -> None:
    from transformers.trainer_pt_utils import LabelSmoother as Reference

    rng = np.random.default_rng(2)
    logits = rng.standard_normal((2, 6, 5)).astype(np.float32)
    labels = rng.integers(0, 5, (2, 6))
    labels[0, 2:4] = -100
    given = torch.from_numpy(logits).requires_grad_()
    expected = Reference(0.2)({"logits": given}, torch.from_numpy(labels), shift, count)
    expected.backward()
    smooth = ms.value_and_grad(lambda x: LabelSmoother(0.2)({"logits": x}, Tensor(labels), shift, count))
    found, gradient = smooth(Tensor(logits))
    _pynative_executor.set_grad_flag(True)  # which a gradient function of MindSpore's own switches off
    assert found.item() == pytest.approx(expected.item(), rel=1e-6)
    np.testing.assert_allclose(gradient.asnumpy(), given.grad.numpy(), rtol=1e-5, atol=1e-6)


def test_decayed_parameters_are_those_of_transformers(tmp_path: Path) -> None:
    from ms_models.compat.normalization import LayerNorm

    class Parts(Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.head, self.q_norm = LayerNorm(3), Linear(3, 3), Linear(3, 3)
            self.inner = LayerNorm(3)
            self.normal = Linear(3, 3)

    class TorchParts(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.head, self.q_norm = torch.nn.LayerNorm(3), torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)
            self.inner = torch.nn.LayerNorm(3)
            self.normal = torch.nn.Linear(3, 3)

    expected = theirs(tmp_path / "torch").get_decay_parameter_names(TorchParts())
    assert sorted(ours(tmp_path / "mindspore").get_decay_parameter_names(Parts())) == sorted(expected)
    assert sorted(expected) == ["head.weight", "normal.weight"]


def test_an_accelerated_loop_is_that_of_accelerate() -> None:
    """prepare, accumulate, backward, clipping, a schedule; seven rows in batches of two, updates after two batches."""
    import accelerate

    def torch_loop() -> list[list[float]]:
        helper, model = accelerate.Accelerator(gradient_accumulation_steps=2, cpu=True), TorchModel()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
        loader = torch.utils.data.DataLoader(rows(7), 2, collate_fn=transformers.default_data_collator)
        return loop(helper, *helper.prepare(model, optimizer, loader, schedule))

    def loop(helper: Any, model: Any, optimizer: Any, loader: Any, schedule: Any) -> list[list[float]]:
        seen = []
        for _ in range(2):
            for batch in loader:
                batch.pop("unused", None)
                with helper.accumulate(model):
                    loss = model(**batch)["loss"]
                    helper.backward(loss)
                    norm = helper.clip_grad_norm_(model.parameters(), 0.4) if helper.sync_gradients else math.nan
                    optimizer.step()
                    schedule.step()
                    optimizer.zero_grad()
                kept = helper.gather_for_metrics(batch["labels"]).shape[0]
                seen.append([loss.item(), float(norm), schedule.get_last_lr()[0], kept, helper.sync_gradients])
        return seen

    from ms_models.compat.collators import default_data_collator

    helper, model = Accelerator(gradient_accumulation_steps=2), Model()
    optimizer = SGD(model.parameters(), lr=0.1)
    schedule = LambdaLR(optimizer, lambda step: 1 / (1 + step))
    loader = DataLoader(rows(7), 2, collate_fn=default_data_collator)
    found = loop(helper, *helper.prepare(model, optimizer, loader, schedule))
    np.testing.assert_allclose(found, torch_loop(), rtol=1e-5)
    with pytest.raises(NotImplementedError, match="save_state"):
        helper.save_state("out")
    with pytest.raises(NotImplementedError, match="deepspeed_plugin"):
        Accelerator(deepspeed_plugin=object())


@pytest.mark.parametrize("held", [None, 2, 5, [2, 7], [5, 2]])
@pytest.mark.parametrize("tokens", [{"eos_token_id": 5, "pad_token_id": 9}, {"bos_token_id": 1, "eos_token_id": None}])
def test_special_tokens_are_aligned_as_in_transformers(held: Any, tokens: dict[str, Any]) -> None:
    from transformers.trainer_utils import align_special_tokens as reference

    tokenizer = SimpleNamespace(**{"eos_token_id": None, "bos_token_id": None, "pad_token_id": None, **tokens})
    found = []
    for align in (reference, align_special_tokens):
        for generation in (None, transformers.GenerationConfig(eos_token_id=held, pad_token_id=0)):
            config = transformers.PretrainedConfig(eos_token_id=held, pad_token_id=4)
            align(SimpleNamespace(config=config, generation_config=generation), tokenizer)
            names = ("eos_token_id", "bos_token_id", "pad_token_id")
            found.append([getattr(owner, name, None) for owner in (config, generation) for name in names])
    assert found[2:] == found[:2]


def test_metrics_are_printed_and_written_as_in_transformers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    metrics = {"train_runtime": 3725.678, "train_loss": 1.23456789, "total_flos": 2.0**31, "epoch": 2, "name": "x"}
    printed = []
    for number, trainer in enumerate((theirs(tmp_path / "0"), ours(tmp_path / "1"))):
        capsys.readouterr()
        trainer.log_metrics("train", metrics)
        printed.append(capsys.readouterr().out)
        trainer.save_metrics("train", metrics)
        trainer.save_metrics("eval", {"eval_loss": 1.0})
        trainer.save_metrics("test", {"test_loss": 1.0}, combined=False)
        trainer.save_state()
        names = ("train_results.json", "eval_results.json", "test_results.json", "all_results.json")
        printed.append([(tmp_path / str(number) / name).read_text(encoding="utf-8") for name in names])
        assert (tmp_path / str(number) / "trainer_state.json").is_file()
    assert printed[2:] == printed[:2]


def test_a_train_method_of_the_model_is_called(tmp_path: Path) -> None:
    class Frozen(Model):
        modes: list[bool] = []

        def train(self, mode: bool = True) -> Any:
            self.modes.append(mode)
            return super().train(mode)

    trainer = ours(tmp_path, max_steps=1, eval_strategy="steps", eval_steps=1)
    trainer.model = trainer.model_wrapped = Frozen()
    Frozen.modes.clear()
    trainer.train()
    assert Frozen.modes == [True, False]


def test_what_is_missing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="model_init"):
        Trainer(args=TrainingArguments(str(tmp_path)))
    with pytest.raises(ValueError, match="eval_dataset"):
        Trainer(Model(), TrainingArguments(str(tmp_path), eval_strategy="epoch"), train_dataset=rows(3))
    with pytest.raises(ValueError, match="train_dataset"):
        Trainer(Model(), TrainingArguments(str(tmp_path))).train()
    with pytest.raises(NotImplementedError, match="hyperparameter_search"):
        ours(tmp_path).hyperparameter_search()
