"""`evaluate`: loss, perplexity and accuracy over the validation split, from all ranks together."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import mindspore as ms
import numpy as np
from mindspore import Tensor

from mappings.errors import UserError
from ms_models.data.loader import Batch
from ms_models.parallel.collectives import all_reduce
from ms_models.parallel.mesh import Mesh
from ms_models.parallel.pipeline import Inputs
from ms_models.train.phases import enter


class Passes(Protocol):
    """Forward passes of a rank: `Backward`, or `Pipeline` where a rank has some of the layers."""

    def evaluate(self, batches: Sequence[Inputs]) -> list[Tensor]:
        """Per micro-batch what the model measures: `[2]` (loss, hits), or the summed loss alone; empty off the last
        stage."""


@dataclass(frozen=True)
class Evaluation:
    """What an evaluation found; the same on every rank."""

    loss: float
    """Mean cross-entropy over the positions with a target, in nats."""
    tokens: int
    """Positions with a target, of all ranks."""
    hits: int | None
    """How many of them are the model's likeliest token; None for a model that gives its loss only."""

    @property
    def perplexity(self) -> float:
        """exp(loss); infinite where that is beyond a float."""
        return math.exp(self.loss) if self.loss < 700 else math.inf

    @property
    def accuracy(self) -> float | None:
        """Share of the positions whose target is the model's likeliest token."""
        return None if self.hits is None else self.hits / self.tokens

    def record(self) -> dict[str, Any]:
        """Fields of a record of metrics.jsonl."""
        found: dict[str, Any] = {"eval_loss": self.loss, "eval_tokens": self.tokens}
        if math.isfinite(self.loss):
            found["eval_perplexity"] = self.perplexity if math.isfinite(self.perplexity) else None
        if self.accuracy is not None:
            found["eval_accuracy"] = self.accuracy
        return found


def evaluate(
    model: Any,
    passes: Passes,
    mesh: Mesh,
    batches: Iterable[Batch],
    count_valid: Callable[[np.ndarray], int],
) -> Evaluation:
    """Evaluates on the batches that all ranks hold together; every rank calls it.

    Each rank sums its batches before the ranks do. Ranks of a pipeline, of tensor and of context parallelism hold the
    same ones.

    Args:
        model: of this rank; its dropout is off meanwhile.
        passes: its compiled forward passes.
        mesh: of this rank.
        batches: of this data-parallel rank.
        count_valid: targets in labels `[B, S]`.

    Raises:
        UserError: no rank has a target.
    """
    found: list[np.ndarray] = []
    count = 0
    with without_dropout(model):
        for batch in batches:
            enter("evaluate")
            tensors = Tensor(batch["input_ids"]), Tensor(batch["attention_mask"]), Tensor(batch["labels"])
            found += [value.asnumpy().reshape(-1).astype(np.float64) for value in passes.evaluate([tensors])]
            count += count_valid(batch["labels"])
    counts_hits = hasattr(model, "measure")
    sums = np.sum(found, axis=0) if found else np.zeros(2 if counts_hits else 1)
    # Every rank of the last stage adds what it computed; whole sequences are counted, which cp and tp ranks share.
    loss = float(all_reduce(Tensor([sums[0]], ms.float32), mesh.group("dp", "cp", "pp")).asnumpy()[0])
    tokens = _sum(count, mesh, "dp")
    if not tokens:
        raise UserError("data: the validation split has no token to evaluate on")
    return Evaluation(loss / tokens, tokens, _sum(round(sums[1]), mesh, "dp", "cp", "pp") if counts_hits else None)


def combined(parts: Sequence[Evaluation]) -> Evaluation:
    """Several evaluations as one, every token of the same weight."""
    if len(parts) == 1:
        return parts[0]
    tokens = sum(part.tokens for part in parts)
    hits = None if any(part.hits is None for part in parts) else sum(part.hits or 0 for part in parts)
    return Evaluation(math.fsum(part.loss * part.tokens for part in parts) / tokens, tokens, hits)


@contextmanager
def without_dropout(model: Any) -> Iterator[None]:
    """`set_train(False)` for a while."""
    was_training = model.training
    model.set_train(False)
    try:
        yield
    finally:
        model.set_train(was_training)


def _sum(number: int, mesh: Mesh, *axes: str) -> int:
    return int(all_reduce(Tensor([number], ms.int64), mesh.group(*axes)).asnumpy()[0])
