"""Small encoders on two ranks against one process, with dropout and without.

Argument: a directory of model directories. Every rank computes the one-process answer itself, from the same files, and
reports how far its own part is from it. Nothing is judged here.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
from harness import report
from mindspore import Tensor
from models_worker import compiled, half, planted, relative, unreduced_backward, unreduced_forward

from mappings.cutting import cut
from mappings.layout import ParallelLayout
from mappings.parallel_options import ParallelOptions
from ms_models.auto_masked_lm import AutoModelForMaskedLM
from ms_models.families.bert.sharding import BertSharding
from ms_models.families.masked_lm import MaskedLM
from ms_models.layers.dropout import Dropout
from ms_models.layers.layer_norm import LayerNorm
from ms_models.parallel.collectives import CopyToGroup, ReduceFromGroup, all_reduce
from ms_models.parallel.mesh import Mesh

BATCH, LENGTH = 4, 12
Arrays = dict[str, np.ndarray]


def make_batch(vocab: int) -> Arrays:
    """Padded, with very unequal numbers of labels in the two halves of the batch."""
    rng = np.random.default_rng(1)
    ids = rng.integers(2, vocab, (BATCH, LENGTH)).astype(np.int32)
    mask = np.ones_like(ids)
    mask[0, 4:], mask[1, :6] = 0, 0
    ids[mask == 0] = 1
    labels = np.where((mask == 1) & (rng.random(ids.shape) < 0.6), rng.integers(0, vocab, ids.shape), -100)
    return {"ids": ids, "labels": labels.astype(np.int32), "mask": mask}


def step(model: MaskedLM, batch: Arrays, count: float, *, jit: bool) -> tuple[Any, Any, dict[str, Tensor]]:
    """Loss sum, logits, and gradients of the loss divided by `count`, by name."""
    parameters = list(model.trainable_params())

    def loss(ids: Tensor, labels: Tensor, mask: Tensor, scale: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        total, _ = model.loss(ids, labels, mask)
        return total * scale, total, model(ids, mask)

    run = compiled(jit, ms.value_and_grad(loss, None, parameters, has_aux=True))
    inputs = [Tensor(batch[key]) for key in ("ids", "labels", "mask")]
    (_, total, logits), gradients = run(*inputs, Tensor(1.0 / count, ms.float32))
    return total, logits, {p.name: g for p, g in zip(parameters, gradients, strict=True)}


class Reference:
    """One process on the whole batch."""

    def __init__(self, directory: Path, *, train: bool) -> None:
        self.directory, self.train = directory, train
        model = self.model()
        self.batch = make_batch(model.config.vocab_size)
        self.count = float((self.batch["labels"] != -100).sum())
        total, logits, gradients = step(model, self.batch, self.count, jit=False)
        self.loss, self.logits = float(total.asnumpy()), logits.asnumpy()
        self.gradients = {name: gradient.asnumpy() for name, gradient in gradients.items()}

    def model(self, mesh: Mesh | None = None, options: ParallelOptions | None = None) -> MaskedLM:
        model = AutoModelForMaskedLM.from_pretrained(self.directory, mesh, options)
        model.set_train(self.train)
        return model

    def compare(self, model: MaskedLM, gradients: dict[str, Tensor]) -> dict[str, Any]:
        errors = {}
        for name, value in gradients.items():
            held = model.held[name]
            # The gradient of a key's bias is zero but for rounding: measured against that of the query's.
            scale = self.gradients[name.replace("self.key.bias", "self.query.bias")]
            difference = value.asnumpy() - cut(self.gradients[name], held.whole, held.arrangement)
            errors[name] = float(np.linalg.norm(difference) / np.linalg.norm(cut(scale, held.whole, held.arrangement)))
        worst = max(errors, key=lambda name: errors[name])
        return {"gradient": errors[worst], "worst": worst, "parameters": len(errors) - len(self.gradients)}


def tensor_parallel(reference: Reference, mesh: Mesh, *, jit: bool, sequence: bool = False) -> dict[str, Any]:
    """Every rank sees the whole batch and holds half of each matrix."""
    model = reference.model(mesh, ParallelOptions(sequence_parallel=sequence))
    total, logits, gradients = step(model, reference.batch, reference.count, jit=jit)
    return {
        "logits": relative(logits.asnumpy(), reference.logits),
        "loss": abs(float(total.asnumpy()) / reference.loss - 1),
        **reference.compare(model, gradients),
    }


def data_parallel(reference: Reference, mesh: Mesh) -> dict[str, Any]:
    """Each rank sees half of the batch; losses and gradients are summed over dp under the global count."""
    group = mesh.group("dp")
    model = reference.model(mesh)
    total, _, gradients = step(model, half(reference.batch, group.index), reference.count, jit=False)
    summed = {name: all_reduce(gradient, group) for name, gradient in gradients.items()}
    return {
        "loss": abs(float(all_reduce(total, group).asnumpy()) / reference.loss - 1),
        **reference.compare(model, summed),
    }


def same_heads(self: BertSharding, rate: float, site: int) -> Dropout:
    """Both ranks drop what the first heads drop."""
    return Dropout(rate, site, 0)


def other_places(self: BertSharding, rate: float, site: int) -> Dropout:
    """The ranks drop different values of a tensor that both have."""
    return Dropout(rate, site, self.group.index)


def unsummed_norm(self: BertSharding, width: int, eps: float) -> LayerNorm:
    """Under sequence parallelism, each rank keeps the gradient of its part; otherwise this is right."""
    return LayerNorm(width, eps)


def faults(reference: Reference, mesh: Mesh) -> dict[str, Any]:
    """The same comparisons with one thing wrong."""
    result: dict[str, Any] = {}
    for name, kind, method, fault in (
        ("forward all-reduce dropped", ReduceFromGroup, "construct", unreduced_forward),
        ("backward all-reduce dropped", CopyToGroup, "bprop", unreduced_backward),
        ("both ranks drop the same of their heads", BertSharding, "head_dropout", same_heads),
        ("the ranks drop otherwise of what both have", BertSharding, "dropout", other_places),
    ):
        with planted(kind, method, fault):
            result[name] = tensor_parallel(reference, mesh, jit=False)
    with planted(BertSharding, "layer_norm", unsummed_norm):
        found = tensor_parallel(reference, mesh, jit=False, sequence=True)
        result["sequence parallel: norms not summed"] = found
    return result


def work() -> dict[str, Any]:
    ms.runtime.launch_blocking()
    tp, dp = Mesh.from_environment(ParallelLayout(tp=2)), Mesh.from_environment(ParallelLayout(dp=2))
    (folder,) = sys.argv[1:]
    result: dict[str, Any] = {"rank": tp.rank, "models": {}}
    for directory in sorted(Path(folder).iterdir()):
        still, dropping = Reference(directory, train=False), Reference(directory, train=True)
        result["models"][directory.name] = {
            "tp": tensor_parallel(still, tp, jit=False),
            "tp with dropout": tensor_parallel(dropping, tp, jit=False),
            "tp with dropout, sequence parallel": tensor_parallel(dropping, tp, jit=False, sequence=True),
            "dp with dropout": data_parallel(dropping, dp),
            "dropped": relative(dropping.logits, still.logits),
        }
        if directory.name == "bert":
            result["compiled"] = tensor_parallel(dropping, tp, jit=True)
            result["faults"] = faults(dropping, tp)
    return result


if __name__ == "__main__":
    report(work)
