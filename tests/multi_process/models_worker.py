"""Small models on several ranks against one process.

Arguments: `pair` (two ranks: tp=2, dp=2, planted faults) or `grid` (four ranks: dp=2 with tp=2), and a
directory of model directories. Every rank computes the one-process answer itself, from the same files, and
reports how far its own part is from it. Nothing is judged here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
from harness import report
from mindspore import Tensor, ops

from mappings.cutting import cut
from mappings.holdings import Held
from mappings.layout import ParallelLayout
from ms_models import AutoModelForCausalLM
from ms_models.families.causal_lm import CausalLM
from ms_models.parallel.collectives import (
    AllReduce,
    CopyToGroup,
    GatherFromGroup,
    ReduceFromGroup,
    all_reduce,
    forget_cells,
)
from ms_models.parallel.mesh import Mesh

BATCH, LENGTH = 4, 11
# A data-parallel rank compiles the graph of one process, which the tests of the families do; so not for each of them.
COMPILED_DP = ("llama",)


def compiled(jit: bool, function: Callable[..., Any]) -> Callable[..., Any]:
    return ms.jit(function) if jit else function


def make_batch(vocab: int) -> dict[str, np.ndarray]:
    """Padded on both sides, with very unequal numbers of valid positions in the two halves of the batch."""
    rng = np.random.default_rng(1)
    ids = rng.integers(0, vocab, (BATCH, LENGTH)).astype(np.int32)
    mask = np.ones_like(ids)
    mask[0, 3:], mask[1, :6] = 0, 0
    labels = np.where(mask == 1, ids, -100).astype(np.int32)
    labels[3, 4] = -100
    return {"ids": ids, "labels": labels, "mask": mask}


def half(batch: dict[str, np.ndarray], index: int) -> dict[str, np.ndarray]:
    return {key: np.split(value, 2)[index] for key, value in batch.items()}


def step(model: CausalLM, batch: dict[str, np.ndarray], count: float, *, jit: bool) -> tuple[Any, ...]:
    """Loss sum, valid count, and gradients of the loss divided by `count`, by name."""
    parameters = list(model.trainable_params())

    def loss(ids: Tensor, labels: Tensor, mask: Tensor, scale: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        total, valid = model.loss(ids, labels, mask)
        return total * scale, total, valid

    run = compiled(jit, ms.value_and_grad(loss, None, parameters, has_aux=True))
    inputs = [Tensor(batch[key]) for key in ("ids", "labels", "mask")]
    (_, total, valid), gradients = run(*inputs, Tensor(1.0 / count, ms.float32))
    return total, valid, {p.name: g for p, g in zip(parameters, gradients, strict=True)}


def relative(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.linalg.norm(found.astype(np.float64) - expected) / np.linalg.norm(expected.astype(np.float64)))


class Reference:
    """One process on the whole batch."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.model = AutoModelForCausalLM.from_pretrained(directory)
        self.batch = make_batch(self.model.config.vocab_size)
        self.count = float((self.batch["labels"][:, 1:] != -100).sum())
        total, valid, gradients = step(self.model, self.batch, self.count, jit=False)
        assert float(valid.asnumpy()) == self.count
        self.loss = float(total.asnumpy())
        self.gradients = {name: gradient.asnumpy() for name, gradient in gradients.items()}
        self.logits = self.model(Tensor(self.batch["ids"]), Tensor(self.batch["mask"])).asnumpy()
        self.tokens = self.model.generate(Tensor(self.batch["ids"][2:]), 6).asnumpy()

    def compare_gradients(self, gradients: dict[str, np.ndarray], held: dict[str, Held]) -> dict[str, Any]:
        errors = {}
        for name, value in gradients.items():
            expected = cut(self.gradients[name], held[name].whole, held[name].arrangement)
            errors[name] = relative(value, expected)
        worst = max(errors, key=lambda name: errors[name])
        return {"gradient": errors[worst], "worst": worst, "parameters": len(errors)}


def tensor_parallel(reference: Reference, mesh: Mesh, *, jit: bool) -> dict[str, Any]:
    """Every rank sees the whole batch and holds half of each matrix."""
    model = AutoModelForCausalLM.from_pretrained(reference.directory, mesh)
    total, valid, gradients = step(model, reference.batch, reference.count, jit=jit)
    arrays = {name: gradient.asnumpy() for name, gradient in gradients.items()}
    forward = compiled(jit, model.construct)
    logits = forward(Tensor(reference.batch["ids"]), Tensor(reference.batch["mask"])).asnumpy()
    return {
        "logits": relative(logits, reference.logits) if logits.shape == reference.logits.shape else str(logits.shape),
        "loss": abs(float(total.asnumpy()) / reference.loss - 1),
        "count": float(valid.asnumpy()) - reference.count,
        **reference.compare_gradients(arrays, model.held),
    }


def data_parallel(reference: Reference, mesh: Mesh, *, jit: bool, local_count: bool = False) -> dict[str, Any]:
    """Each rank sees half of the batch; losses and gradients are summed over dp under the global count."""
    group = mesh.group("dp")
    model = AutoModelForCausalLM.from_pretrained(reference.directory, mesh)
    batch = half(reference.batch, group.index)
    here = Tensor(float((batch["labels"][:, 1:] != -100).sum()), ms.float32)
    count = float((here * 2 if local_count else all_reduce(here, group)).asnumpy())
    total, valid, gradients = step(model, batch, count, jit=jit)
    arrays = {name: all_reduce(gradient, group).asnumpy() for name, gradient in gradients.items()}
    return {
        "loss": abs(float(all_reduce(total, group).asnumpy()) / reference.loss - 1),
        "count": float(all_reduce(valid, group).asnumpy()) - reference.count,
        "local count": float(here.asnumpy()),
        **reference.compare_gradients(arrays, model.held),
    }


@contextmanager
def planted(kind: type, method: str, fault: Callable[..., Any]) -> Iterator[None]:
    """Replaces a method of a class for the time of the block, for Cells made in it."""
    right = getattr(kind, method)
    setattr(kind, method, fault)
    forget_cells()  # cached Cells must not outlive a fault
    try:
        yield
    finally:
        setattr(kind, method, right)
        forget_cells()


def unreduced_forward(self: ReduceFromGroup, x: Tensor) -> Tensor:
    return x * self.all_reduce.size


def unreduced_backward(self: CopyToGroup, x: Tensor, out: Tensor, dout: Tensor) -> tuple[Tensor]:
    return (dout,)


def summed_backward(self: ReduceFromGroup, x: Tensor, out: Tensor, dout: Tensor) -> tuple[Tensor]:
    return (self.all_reduce(dout),)


def swapped_gather(self: GatherFromGroup, x: Tensor) -> Tensor:
    whole = right_gather(self, x)
    return whole if self.size == 1 else ops.concat(ops.split(whole, x.shape[self.axis], self.axis)[::-1], self.axis)


def no_reduce(self: AllReduce, x: Tensor) -> Tensor:
    return x


right_gather = GatherFromGroup.construct


def faults(reference: Reference, tp: Mesh, dp: Mesh) -> dict[str, Any]:
    """The same comparisons with one thing wrong."""
    result: dict[str, Any] = {}
    with planted(ReduceFromGroup, "construct", unreduced_forward):
        result["forward all-reduce dropped"] = tensor_parallel(reference, tp, jit=False)
    with planted(CopyToGroup, "bprop", unreduced_backward):
        result["backward all-reduce dropped"] = tensor_parallel(reference, tp, jit=False)
    with planted(ReduceFromGroup, "bprop", summed_backward):
        result["gradient doubled"] = tensor_parallel(reference, tp, jit=False)
    with planted(GatherFromGroup, "construct", swapped_gather):
        result["gather in the wrong order"] = tensor_parallel(reference, tp, jit=False)
    with planted(AllReduce, "construct", no_reduce):
        result["dp all-reduce dropped"] = data_parallel(reference, dp, jit=False)
    result["local token count"] = data_parallel(reference, dp, jit=False, local_count=True)
    return result


def unknown_tokens(reference: Reference, mesh: Mesh) -> bool:
    """Whether an id outside the vocabulary, which no rank holds, makes the loss NaN instead of passing as zeros."""
    model = AutoModelForCausalLM.from_pretrained(reference.directory, mesh)
    ids = reference.batch["ids"].copy()
    ids[2, 5] = model.config.vocab_size
    total, _ = model.loss(Tensor(ids), Tensor(reference.batch["labels"]))
    return bool(np.isnan(total.asnumpy()))


def pair(directories: list[Path]) -> dict[str, Any]:
    """Two ranks, which are each other's only partner."""
    tp, dp = Mesh.from_environment(ParallelLayout(tp=2)), Mesh.from_environment(ParallelLayout(dp=2))
    result: dict[str, Any] = {"rank": tp.rank, "models": {}}
    for directory in directories:
        reference = Reference(directory)
        cases = {}
        for jit in (False, True):
            mode = "jit" if jit else "pynative"
            cases[f"tp {mode}"] = tensor_parallel(reference, tp, jit=jit)
            if not jit or directory.name in COMPILED_DP:
                cases[f"dp {mode}"] = data_parallel(reference, dp, jit=jit)
        model = AutoModelForCausalLM.from_pretrained(directory, tp)
        tokens = model.generate(Tensor(reference.batch["ids"][2:]), 6).asnumpy()
        result["models"][directory.name] = {
            "cases": cases,
            "same tokens": bool(np.array_equal(tokens, reference.tokens)),
            "parameters": len(reference.gradients),
        }
    result["faults"] = faults(reference, tp, dp)
    result["unknown token is NaN"] = unknown_tokens(reference, tp)
    return result


def grid(directories: list[Path]) -> dict[str, Any]:
    """Four ranks in sub-groups: each row of the grid is tensor parallel, each column data parallel."""
    mesh = Mesh.from_environment(ParallelLayout(tp=2, dp=2))
    reference = Reference(next(path for path in directories if path.name == "llama"))
    return {
        "coordinates": mesh.coordinates,
        "parameters": len(reference.gradients),
        "case": data_parallel(reference, mesh, jit=True),
        "fault": data_parallel(reference, mesh, jit=True, local_count=True),
    }


def work() -> dict[str, Any]:
    ms.runtime.launch_blocking()
    kind, folder = sys.argv[1:]
    return {"pair": pair, "grid": grid}[kind](sorted(Path(folder).iterdir()))


if __name__ == "__main__":
    report(work)
