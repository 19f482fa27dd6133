"""Converted torch_gpt on two ranks against one process, one layout after the other.

Argument: a folder with `repository`, converted with --shard. Every rank computes the one-process answer itself and
reports how far its own part is from it. Nothing is judged here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
from harness import report
from mindspore import Tensor
from planting import planted

from mappings.cutting import cut
from ms_models.data.loader import Batch
from ms_models.parallel import optimizer_sharding
from ms_models.parallel.mesh import Mesh
from ms_models.train.adapter.building import build_adapted
from ms_models.train.adapter.forward import Forward
from ms_models.train.config import RunConfig
from ms_models.train.config.schema import build
from ms_models.train.step import Trainer

# With the usual eps the update of an element whose gradient is near zero is its sign, noise or not.
OPTIMIZER = {"lr": 1e-2, "weight_decay": 0.1, "eps": 1e-3, "clip_norm": 0.3}
CASES: dict[str, dict[str, Any]] = {
    "dp2": {"layout": {"dp": 2}},
    "dp2 zero 1": {"layout": {"dp": 2, "zero": 1}},
    "dp2 zero 2": {"layout": {"dp": 2, "zero": 2}},
    "dp2 zero 3": {"layout": {"dp": 2, "zero": 3}},
    "tp2": {"layout": {"tp": 2}},
    "tp2 recompute": {"layout": {"tp": 2}, "parallel": {"recompute": "block"}},
    "pp2": {"layout": {"pp": 2}},
    "pp2 zero bubble": {"layout": {"pp": 2}, "parallel": {"schedule": "zero_bubble"}},
    "pp2 vpp2": {"layout": {"pp": 2, "vpp": 2}},
}


def configured(root: Path, **sections: Any) -> RunConfig:
    dp = sections.get("layout", {}).get("dp", 1)
    arguments = {"vocab_size": 257, "n_layer": 5, "n_head": 4, "n_kv_head": 2, "n_embd": 16, "hidden_dim": 24}
    data = {"max_bytes": 2000000, "block_size": 16, "batch_size": 2, "num_workers": 0, "seed": 1}
    adapter = {
        "repository": str(root / "repository"), "module": "model", "class_name": "GPT", "select": 1,
        "arguments": {"config": {"_target_": "model:GPTConfig", "max_seq_len": 32, **arguments}},
        "inputs": {"input_ids": "idx", "labels": "targets"}, "blocks": "blocks",
        "batches": {"function": "dataset:build_loaders", "arguments": {"cfg": data}, "position": "start", "train": 0},
    }  # fmt: skip
    values = {
        "model": {"adapter": adapter}, "output": {"directory": str(root / "out")}, "optimizer": OPTIMIZER,
        "train": {"steps": 9, "micro_batch_size": 2, "accumulation": 4 // dp, "jit": False, "seed": 3}, **sections,
    }  # fmt: skip
    return build(RunConfig, values)


def batches(mesh: Mesh, step: int) -> list[Batch]:
    """Of four micro-batches with very unequal numbers of labels, those of a data-parallel rank."""
    rng = np.random.default_rng(step)
    made: list[Batch] = []
    for number in range(4):
        ids = rng.integers(0, 257, (2, 16)).astype(np.int32)
        labels = rng.integers(0, 257, (2, 16)).astype(np.int32)
        labels[:, : 5 * number] = -100
        made.append({"input_ids": ids, "labels": labels, "attention_mask": np.ones_like(ids)})
    return made[mesh.coordinates["dp"] :: mesh.layout.dp]


class Answer:
    """Two steps of a layout."""

    def __init__(self, config: RunConfig, mesh: Mesh) -> None:
        subject = build_adapted(config, mesh, None)
        self.model = subject.model
        trainer = Trainer(subject.model, mesh, config.optimizer, jit=False, count_valid=subject.count_valid)
        first = trainer.step(batches(mesh, 1), 1e-2)
        self.gradients = trainer.sharding.whole(trainer.gradients.reduce())
        values = {one.name: one.asnumpy().copy() for one in subject.model.get_parameters()}
        kept = trainer.divided
        self.weights = values if kept is None else values | trainer.sharding.whole(kept.kept)
        second = trainer.step(batches(mesh, 2), 1e-2)
        self.figures = {"loss": first.loss, "norm": first.grad_norm, "next loss": second.loss}
        self.tokens = first.tokens, second.tokens


def relative(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.linalg.norm(found - expected)) / max(float(np.linalg.norm(expected)), 1e-30)


def compared(found: Answer, expected: Answer) -> dict[str, Any]:
    """Largest relative difference of what this rank holds."""
    assert found.tokens == expected.tokens
    held = found.model.held
    result: dict[str, Any] = {name: abs(value / expected.figures[name] - 1) for name, value in found.figures.items()}
    for what in ("gradients", "weights"):
        parts = {
            name: cut(getattr(expected, what)[name], held[name].whole, held[name].arrangement)
            for name in getattr(found, what)
        }
        differences = {name: relative(getattr(found, what)[name], part) for name, part in parts.items()}
        assert all(np.abs(part).max() > 0 for part in parts.values()), "nothing is compared"
        result[what] = max(differences.values())
        result[f"{what} held"] = sorted(differences)
    return result


def mean_of_means(self: Forward, ids: Tensor, labels: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Each micro-batch weighs the same, however many labels it has."""
    count = (labels != -100).astype(ms.float32).sum()
    return self.selected(self.call(ids, labels, mask)) * (4 * 32 - 60) / 4, count


def without_ends(together: Callable[..., Any]) -> Callable[..., Any]:
    """Each end of the pipeline keeps its own gradient of the tied table."""

    def fault(*args: Any) -> Any:
        return replace(together(*args), ends=None)

    return fault


def work() -> dict[str, Any]:
    ms.runtime.launch_blocking()
    root = Path(sys.argv[1])
    expected = Answer(configured(root), Mesh.single())
    result: dict[str, Any] = {"parameters": sorted(expected.weights)}
    for name, sections in CASES.items():
        config = configured(root, **sections)
        result[name] = compared(Answer(config, Mesh.from_environment(config.layout)), expected)
    config = configured(root, **CASES["dp2"])
    with planted(Forward, "construct", mean_of_means):
        result["mean of means"] = compared(Answer(config, Mesh.from_environment(config.layout)), expected)
    config = configured(root, **CASES["pp2"])
    with planted(optimizer_sharding, "_together", without_ends(optimizer_sharding._together)):
        result["ends not added"] = compared(Answer(config, Mesh.from_environment(config.layout)), expected)
    return result


if __name__ == "__main__":
    report(work)
