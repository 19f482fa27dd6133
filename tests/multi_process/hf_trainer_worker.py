"""Worker of test_hf_trainer_ranks.py: a training with the trainer that converted scripts use, on every rank."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
from harness import report
from mindspore import Parameter, Tensor

from ms_models.compat.hf_trainer import Trainer
from ms_models.compat.losses import cross_entropy
from ms_models.compat.module import Module
from ms_models.compat.training_arguments import TrainingArguments

FEATURES, CLASSES = 4, 3


class Model(Module):
    def __init__(self) -> None:
        super().__init__()
        weight = np.random.default_rng(0).standard_normal((FEATURES, CLASSES)).astype(np.float32)
        self.weight = Parameter(Tensor(weight))

    def construct(self, x: Tensor, labels: Tensor, **kwargs: Any) -> dict[str, Tensor]:
        logits = ms.ops.matmul(x, self.weight)
        count = kwargs.get("num_items_in_batch")
        loss = cross_entropy(logits, labels, ignore_index=-100, reduction="mean" if count is None else "sum")
        return {"loss": loss if count is None else loss / count, "logits": logits}


def rows(count: int, seed: int) -> list[dict[str, Any]]:
    """Some labels do not count, so that ranks have different numbers of them."""
    rng = np.random.default_rng(seed)
    labels = [-100 if number % 3 == 1 else int(rng.integers(CLASSES)) for number in range(count)]
    return [{"x": rng.standard_normal(FEATURES).astype(np.float32), "labels": label} for label in labels]


def metrics(prediction: Any) -> dict[str, float]:
    logits, labels = prediction
    return {"rows": len(labels), "sum": float(np.abs(logits).sum()), "labels": float(labels.sum())}


def trained(directory: Path, average: bool = True, **settings: Any) -> dict[str, Any]:
    """History and weights of a training, and the files that this process sees afterwards."""
    args = TrainingArguments(
        str(directory), per_device_train_batch_size=2, per_device_eval_batch_size=2, learning_rate=0.1, max_steps=5,
        logging_steps=1, eval_strategy="steps", eval_steps=3, save_steps=4, seed=7, disable_tqdm=True,
        average_tokens_across_devices=average, **settings,
    )  # fmt: skip
    trainer = Trainer(Model(), args, train_dataset=rows(8, 1), eval_dataset=rows(5, 2), compute_metrics=metrics)
    trainer.train()
    timed = ("runtime", "per_second", "flos")
    history = [{k: v for k, v in e.items() if not k.endswith(timed)} for e in trainer.state.log_history]
    return {"history": history, "weight": trainer.model.weight.asnumpy().tolist()}


def work() -> dict[str, Any]:
    folder = Path(sys.argv[1])
    found = {"own": trained(folder / "ranks"), "local": trained(folder / "local", average=False)}
    again = TrainingArguments(str(folder / "ranks"), max_steps=5, per_device_train_batch_size=2, seed=7)
    trainer = Trainer(Model(), again, train_dataset=rows(8, 1))
    trainer.train(resume_from_checkpoint=True)
    found["files"] = sorted(path.name for path in (folder / "ranks" / "checkpoint-4").iterdir())
    return {**found, "resumed": trainer.model.weight.asnumpy().tolist()}


if __name__ == "__main__":
    report(work)
