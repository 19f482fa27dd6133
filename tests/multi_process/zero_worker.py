"""Optimizer states divided over two replicas against one process that sees all samples.

Argument: a folder with `odd` and `experts`, two models. Every rank computes the one-process answer itself and reports
how far its own part is from it, besides sizes of what it keeps. Nothing is judged here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
from grid_worker import make_batch, split
from harness import report
from mindspore import Parameter, Tensor, ops
from planting import planted

from mappings.arrangement import Arrangement
from mappings.holdings import Held
from mappings.layout import ParallelLayout
from mappings.parallel_options import ParallelOptions
from ms_models import AutoModelForCausalLM
from ms_models.parallel import optimizer_sharding
from ms_models.parallel.mesh import Mesh
from ms_models.parallel.optimizer_sharding import Bucket, OptimizerSharding
from ms_models.train.checkpoints.checkpoints import Checkpoints
from ms_models.train.config import OptimizerConfig, RunConfig
from ms_models.train.config.schema import build
from ms_models.train.gradients import GradientBuffers, clip_factor
from ms_models.train.optimizer import AdamW, label
from ms_models.train.parameter_groups import ParameterGroups
from ms_models.train.step import Trainer

# With the usual eps the update of an element whose gradient is near zero is its sign, noise or not.
CONFIG = OptimizerConfig(weight_decay=0.1, betas=(0.9, 0.95), eps=1e-3, clip_norm=0.3)
LR = 1e-2
# Rows that two ranks do not divide, a single row, a scalar.
SHAPES: dict[str, tuple[int, ...]] = {"odd": (5, 3), "even": (4, 2), "row": (1, 3), "one": (1,), "bias": (3,), "s": ()}


def relative(found: np.ndarray, expected: np.ndarray) -> float:
    difference = float(np.linalg.norm(np.asarray(found, np.float64) - expected))
    return difference / max(float(np.linalg.norm(np.asarray(expected, np.float64))), 1e-30)


def worst(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> float:
    assert found.keys() == expected.keys(), found.keys() ^ expected.keys()
    return max(relative(found[name], expected[name]) for name in expected)


def run(trainer: Trainer, batches: list[dict[str, np.ndarray]]) -> dict[str, Any]:
    """Two steps: loss, norm and gradients of the first, weights and states behind it, loss of the second."""
    reduced: list[tuple[Tensor, ...]] = []
    reduce = trainer.gradients.reduce

    def kept() -> tuple[Tensor, ...]:
        reduced.append(reduce())
        return reduced[0]

    with planted(trainer.gradients, "reduce", kept):
        first = trainer.step(batches, LR)
    found = {
        "gradients": trainer.sharding.whole(reduced[0]),
        "states": trainer.optimizer.whole_state(),
        "weights": whole_weights(trainer),
        "loss": first.loss,
        "norm": first.grad_norm,
    }
    return {**found, "second": trainer.step(batches, LR).loss}


def whole_weights(trainer: Trainer) -> dict[str, np.ndarray]:
    if trainer.divided is not None:
        return trainer.sharding.whole(trainer.divided.kept)
    # Copies: an array shares its memory with the parameter, which the next step changes.
    return {parameter.name: parameter.asnumpy().copy() for parameter in trainer.model.get_parameters()}


def compare(found: dict[str, Any], expected: dict[str, Any]) -> dict[str, float]:
    result = {kind: worst(found[kind], expected[kind]) for kind in ("gradients", "states", "weights")}
    return result | {kind: abs(found[kind] / expected[kind] - 1) for kind in ("loss", "norm", "second")}


class Model:
    """One of the models, in one process and on two ranks."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.vocab = AutoModelForCausalLM.from_pretrained(directory).vocab
        alone = Trainer(AutoModelForCausalLM.from_pretrained(directory), Mesh.single(), CONFIG, jit=False)
        self.expected = run(alone, [make_batch(self.vocab)])
        self.elements = sum(parameter.size for parameter in alone.model.get_parameters())

    def trainer(self, layout: ParallelLayout, *, jit: bool = False, directory: Path | None = None) -> Trainer:
        mesh = Mesh.from_environment(layout)
        return Trainer(AutoModelForCausalLM.from_pretrained(directory or self.directory, mesh), mesh, CONFIG, jit=jit)

    def batches(self, trainer: Trainer) -> list[dict[str, np.ndarray]]:
        """Two micro-batches of this replica."""
        return split(split(make_batch(self.vocab), 2)[trainer.mesh.coordinates["dp"]], 2)

    def case(self, layout: ParallelLayout, *, jit: bool = False) -> dict[str, Any]:
        trainer = self.trainer(layout, jit=jit)
        result: dict[str, Any] = compare(run(trainer, self.batches(trainer)), self.expected)
        return result | {
            "elements": self.elements,
            "parameters": len(trainer.model.trainable_params()),
            "padding": sum(sum(b.padding[i] * b.kept_sizes[i] // b.rows[i] for i in range(len(b.names)))
                           for b in trainer.sharding.buckets),
            "of a moment": sum(buffer.size for buffer in trainer.optimizer.flat["exp_avg"]),
            "of weights": sum(parameter.size for parameter in trainer.model.trainable_params()),
            "of kept weights": sum(b.size for b in trainer.divided.kept) if trainer.divided is not None else 0,
            "of gradients": sum(buffer.size for buffer in trainer.gradients.accumulators),
        }  # fmt: skip

    def saved(self, layout: ParallelLayout, folder: Path) -> dict[str, Any]:
        """Whether a trainer that was saved and loaded goes on as the one that was not."""
        trainer = self.trainer(layout)
        batches = self.batches(trainer)
        trainer.step(batches, LR)
        values = {
            "model": {"path": str(self.directory)}, "data": {"path": "unused"}, "train": {"steps": 2},
            "output": {"directory": str(folder)}, "checkpoint": {"asynchronous": False},
        }  # fmt: skip
        config = build(RunConfig, values)
        directory = Checkpoints(config, trainer, {}).save(1, 5)[-1].directory
        again = self.trainer(layout, directory=directory)
        Checkpoints(config, again, {}).restore(directory)
        same = all(np.array_equal(v, again.optimizer.state()[n]) for n, v in trainer.optimizer.state().items())
        if trainer.mesh.rank == 0:
            np.savez(folder / "states.npz", **self.expected["states"])
        return {"same states": same, "next": again.step(batches, LR) == trainer.step(batches, LR)}


def wrong_rows(self: Bucket, tensors: list[Tensor]) -> Tensor:
    parts = []
    for place, tensor in enumerate(tensors):
        first = (1 - self.index) * self.rows[place]
        parts.append(self.padded(tensor, place)[first : first + self.rows[place]].reshape(-1))
    return ops.concat(parts)


def own_rows_only(self: Bucket, kept: Tensor) -> Tensor:
    return ops.concat([kept.reshape(1, -1)] * self.shares)


def counted_everywhere(self: GradientBuffers, reduced: tuple[Tensor, ...]) -> float:
    whole = [bucket.gather(kept) for bucket, kept in zip(self.sharding.buckets, reduced, strict=True)]
    return true_norm(self, whole)


def not_summed(self: Bucket, flat: Tensor) -> Tensor:
    return flat[self.index]


true_norm = GradientBuffers.norm


def faults(model: Model) -> dict[str, Any]:
    """The comparison with one thing wrong."""
    layout = ParallelLayout(dp=2, zero=1)
    planned: dict[str, tuple[type, str, Callable[..., Any]]] = {
        "update of the wrong rows": (Bucket, "kept", wrong_rows),
        "gather forgotten": (Bucket, "gather", own_rows_only),
        "norm counted twice": (GradientBuffers, "norm", counted_everywhere),
        "gradients not summed": (Bucket, "scatter", not_summed),
    }
    result: dict[str, Any] = {}
    for name, (owner, method, fault) in planned.items():
        trainer = model.trainer(layout)
        with planted(owner, method, fault):
            result[name] = compare_weights(trainer, model)
    return result


def compare_weights(trainer: Trainer, model: Model) -> dict[str, float]:
    first = trainer.step(model.batches(trainer), LR)
    weights = whole_weights(trainer)
    return {
        "norm": abs(first.grad_norm / model.expected["norm"] - 1),
        "weights": worst(weights, model.expected["weights"]),
    }


def alone(dtype: Any, layout: ParallelLayout | None) -> dict[str, Any]:
    """Two updates of parameters of all shapes; with a layout each rank has half of the gradient."""
    mesh = Mesh.single() if layout is None else Mesh.from_environment(layout)
    rng = np.random.default_rng(3)
    values = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()}
    parameters = [Parameter(Tensor(value).astype(dtype), name=name) for name, value in values.items()]
    wholes = {name: Arrangement.of(name, shape) for name, shape in SHAPES.items()}
    held = {name: Held(name, w, w, "ffn", False, (0,), mesh.rank == 0) for name, w in wholes.items()}
    groups = ParameterGroups(CONFIG)
    sharding = OptimizerSharding(parameters, held, mesh, [label(parameter, groups) for parameter in parameters])
    gradients, optimizer = GradientBuffers(sharding), AdamW(sharding, CONFIG, lambda function: function)
    add = gradients.adder(parameters)
    norms = []
    for _ in range(2):
        # Sixteenths add up exactly, whoever adds them.
        drawn = {n: rng.integers(-40, 40, (2, *shape)).astype(np.float32) / 16 for n, shape in SHAPES.items()}
        gradients.zero()
        for half in range(2):
            if layout is None or half == mesh.rank:
                add([Tensor(value[half]) for value in drawn.values()])
        reduced = gradients.reduce()
        norms.append(gradients.norm(reduced))
        optimizer.update(reduced, LR, clip_factor(norms[-1], CONFIG.clip_norm))
    weights = {parameter.name: parameter.astype(ms.float32).asnumpy() for parameter in parameters}
    kept = {name: list(value.shape) for name, value in optimizer.state().items()}
    return {"weights": weights, "states": optimizer.whole_state(), "norms": norms, "kept": kept}


def shapes(dtype: Any, layout: ParallelLayout) -> dict[str, Any]:
    """Distances from one process of `alone`, and what this rank keeps."""
    expected, found = alone(dtype, None), alone(dtype, layout)
    return {
        "weights": worst(found["weights"], expected["weights"]),
        "states": worst(found["states"], expected["states"]),
        "norms": max(abs(a / b - 1) for a, b in zip(found["norms"], expected["norms"], strict=True)),
        "kept": found["kept"],
    }


def work() -> dict[str, Any]:
    ms.runtime.launch_blocking()
    optimizer_sharding.BUCKET_ELEMENTS = 2000  # several buckets even here
    ParallelOptions.bucket_elements = property(lambda options: 2000)
    folder = Path(sys.argv[1])
    zero1, zero2, zero3 = (ParallelLayout(dp=2, zero=stage) for stage in (1, 2, 3))
    odd, experts = Model(folder / "odd"), Model(folder / "experts")
    return {
        "rank": Mesh.from_environment(zero1).rank,
        "cases": {
            "zero1": odd.case(zero1),
            "zero2 jit": odd.case(zero2, jit=True),
            "zero3": odd.case(zero3),
            "zero3 experts": experts.case(zero3),
        },
        "shapes": {
            "fp32": shapes(ms.float32, zero1),
            "fp16": shapes(ms.float16, zero2),
        },
        "saved": {
            "odd": odd.saved(zero1, folder / "saved odd"),
            "experts": experts.saved(zero3, folder / "saved experts"),
        },
        "faults": faults(odd),
    }


if __name__ == "__main__":
    report(work)
