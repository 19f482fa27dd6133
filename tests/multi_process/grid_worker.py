"""Two training steps under every layout of a launch, against what one process computed before.

Arguments: name of the launch (see `grid_cases`), folder with the models and their references. Every rank reports how
far its own parts are from one process. Nothing is judged here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
from grid_cases import LAUNCHES, Case
from harness import report
from planting import planted

from mappings.cutting import cut
from mappings.layout import ParallelLayout
from mappings.parallel_options import ParallelOptions
from ms_models import AutoModelForCausalLM
from ms_models.parallel.mesh import Mesh
from ms_models.parallel.optimizer_sharding import Bucket
from ms_models.train.config import OptimizerConfig
from ms_models.train.host_thread import wait_quietly
from ms_models.train.step import Trainer

SEQUENCES, LENGTH = 8, 16
REFERENCE = "reference.npz"
# Clipping is active. With the usual eps the update of an element whose gradient is near zero is its sign, noise or not.
CONFIG = OptimizerConfig(weight_decay=0.1, betas=(0.9, 0.95), eps=1e-3, clip_norm=0.5)
LR = 1e-2


def make_batch(vocab: int) -> dict[str, np.ndarray]:
    """Padded on both sides, with very unequal numbers of valid positions in every part that a rank may get."""
    rng = np.random.default_rng(1)
    ids = rng.integers(0, vocab, (SEQUENCES, LENGTH)).astype(np.int32)
    mask = np.ones_like(ids)
    for row, (start, stop) in enumerate([(0, 3), (6, 16), (0, 16), (0, 11), (0, 5), (13, 16), (0, 16), (2, 16)]):
        mask[row, :start] = mask[row, stop:] = 0
    labels = np.where(mask == 1, ids, -100).astype(np.int32)
    labels[2, 4] = -100
    return {"input_ids": ids, "labels": labels, "attention_mask": mask}


def split(batch: dict[str, np.ndarray], parts: int) -> list[dict[str, np.ndarray]]:
    """Equal parts of a batch."""
    pieces = {key: np.split(value, parts) for key, value in batch.items()}
    return [{key: value[part] for key, value in pieces.items()} for part in range(parts)]


def two_steps(trainer: Trainer, batches: list[dict[str, np.ndarray]]) -> dict[str, Any]:
    """Loss, norm and gradients of a step, weights behind it, loss of the next one."""
    reduced: list[tuple[ms.Tensor, ...]] = []
    reduce = trainer.gradients.reduce

    def kept() -> tuple[ms.Tensor, ...]:
        reduced.append(reduce())
        return reduced[0]

    with planted(trainer.gradients, "reduce", kept):
        first = trainer.step(batches, LR)
    gradients = trainer.sharding.whole(reduced[0])
    weights = {parameter.name: parameter.asnumpy().copy() for parameter in trainer.model.trainable_params()}
    second = trainer.step(batches, LR)
    return {
        "loss": first.loss,
        "norm": first.grad_norm,
        "tokens": first.tokens,
        "second": second.loss,
        "gradients": gradients,
        "weights": weights,
    }


def write_reference(directory: Path) -> None:
    """What one process computes from a model directory, into a file beside it."""
    model = AutoModelForCausalLM.from_pretrained(directory)
    found = two_steps(Trainer(model, Mesh.single(), CONFIG, jit=False), [make_batch(model.config.vocab_size)])
    arrays = {f"{kind}/{name}": value for kind in ("gradients", "weights") for name, value in found[kind].items()}
    numbers = {key: np.float64(found[key]) for key in ("loss", "norm", "tokens", "second")}
    np.savez(directory / REFERENCE, **arrays, **numbers)


def relative(found: np.ndarray, expected: np.ndarray, whole: np.ndarray) -> float:
    """Against the part itself, or a hundredth of the whole where the part is next to nothing."""
    norm = max(np.linalg.norm(expected.astype(np.float64)), 0.01 * np.linalg.norm(whole.astype(np.float64)))
    return float(np.linalg.norm(found.astype(np.float64) - expected) / norm)


_alive: list[Run] = []
"""ms.jit finds what it parsed by the ids of objects, which those of a later case may get when these are freed."""


class Run:
    """A case on this rank."""

    def __init__(self, case: Case, folder: Path) -> None:
        self.case, self.directory = case, folder / case.model
        self.mesh = Mesh.from_environment(case.layout)
        options = ParallelOptions(**case.options, schedule=case.schedule)
        self.model = AutoModelForCausalLM.from_pretrained(self.directory, self.mesh, options)
        self.trainer = Trainer(self.model, self.mesh, CONFIG, jit=case.jit)
        _alive.append(self)

    def batches(self) -> list[dict[str, np.ndarray]]:
        """The micro-batches of this replica."""
        batch = make_batch(self.model.config.vocab_size)
        own = split(batch, self.case.layout.dp)[self.mesh.coordinates["dp"]]
        return split(own, self.case.accumulation)

    def compare(self, found: dict[str, Any] | None = None) -> dict[str, Any]:
        """Largest differences from one process."""
        found = found or two_steps(self.trainer, self.batches())
        known = np.load(self.directory / REFERENCE)
        result: dict[str, Any] = {"parameters": len(found["gradients"])}
        for key in ("loss", "norm", "second"):
            result[key] = abs(found[key] / float(known[key]) - 1)
        result["tokens"] = found["tokens"] - float(known["tokens"])
        for kind in ("gradients", "weights"):
            errors = {}
            for name, value in found[kind].items():
                held, whole = self.model.held[name], known[f"{kind}/{name}"]
                errors[name] = relative(value, cut(whole, held.whole, held.arrangement), whole)
            worst = max(errors, key=lambda name: errors[name])
            result[kind], result[f"worst of {kind}"] = errors[worst], worst
        return result


def faults(folder: Path) -> dict[str, Any]:
    """The same comparisons with one thing wrong, on two ranks."""
    data = Case("dp2", ParallelLayout(dp=2), accumulation=2)
    stages = Case("pp2", ParallelLayout(pp=2), accumulation=2, model="qwen2-tied")
    result: dict[str, Any] = {}
    with planted(Bucket, "finish", lambda self, kept: kept):
        result["dropped all-reduce"] = Run(data, folder).compare()

    run = Run(data, folder)
    backward = run.trainer._forward_backward
    with planted(run.trainer, "_forward_backward", lambda batches, scale: backward(batches, scale * 2)):
        result["doubled scale"] = run.compare()

    run = Run(data, folder)
    found = two_steps(run.trainer, run.batches())
    name = "model.layers.1.self_attn.k_proj.weight"
    found["gradients"][name] = np.roll(found["gradients"][name], 1, 0)
    result["permuted gradient"] = run.compare(found)

    run = Run(stages, folder)
    result["off-by-one micro-batch"] = _shifted(run)

    run = Run(stages, folder)
    for bucket in run.trainer.sharding.buckets:
        bucket.is_counted = bucket.is_counted or bucket.together.ends is not None
    result["tied weight counted twice"] = run.compare()
    return result


def _shifted(run: Run) -> dict[str, Any]:
    """Backward passes of the first stage read the next micro-batch."""
    batches = run.batches()
    if run.mesh.coordinates["pp"] == 0:
        batches = batches[1:] + batches[:1]
    return run.compare(two_steps(run.trainer, batches))


def work() -> dict[str, Any]:
    ms.runtime.launch_blocking()
    wait_quietly()
    name, folder = sys.argv[1], Path(sys.argv[2])
    only = sys.argv[3:]
    result: dict[str, Any] = {"cases": {}}
    run: Callable[[Case], dict[str, Any]] = lambda case: Run(case, folder).compare()  # noqa: E731
    for case in LAUNCHES[name][1]:
        if not only or case.name in only:
            result["cases"][case.name] = run(case)
    if name == "pair" and not only:
        result["faults"] = faults(folder)
    return result


if __name__ == "__main__":
    report(work)
