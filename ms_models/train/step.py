"""One optimizer step and one evaluation, the same code for every layout.

A step's loss and gradients are divided by the number of valid tokens of the whole global batch (over accumulation and
data-parallel ranks) before the backward pass, so that every token weighs the same however the batch is dealt out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, ops

from mappings.errors import UserError
from ms_models.data.loader import Batch
from ms_models.data.packing import IGNORED
from ms_models.families.causal_lm import CausalLM
from ms_models.parallel.collectives import all_reduce
from ms_models.parallel.mesh import Mesh
from ms_models.parallel.pipeline import Inputs, Pipeline
from ms_models.train.config import OptimizerConfig
from ms_models.train.gradients import GradientBuffers, agree, clip_factor
from ms_models.train.optimizer import AdamW


@dataclass(frozen=True)
class StepResult:
    """What one step did; the same on every rank."""

    loss: float
    """Mean over the valid tokens of the global batch."""
    grad_norm: float
    """Before clipping."""
    tokens: int
    """Valid tokens of the global batch."""
    is_finite: bool
    """False when loss or norm was not finite on some rank; nothing was updated then."""


def count_valid(labels: np.ndarray) -> int:
    """Positions that have a target once labels are shifted by one."""
    return int((labels[:, 1:] != IGNORED).sum())


class Trainer:
    """The model, its gradients and its optimizer on one rank."""

    def __init__(
        self, model: CausalLM, mesh: Mesh, config: OptimizerConfig, *, jit: bool, schedule: str | None = None
    ) -> None:
        self.model, self.mesh, self.config = model, mesh, config
        self._data = mesh.group("dp")
        self._parts = mesh.group("dp", "cp", "pp")
        compiled: Callable[[Any], Any] = ms.jit if jit else _as_it_is
        parameters = model.trainable_params()
        self.gradients = GradientBuffers(parameters, model.held, mesh, compiled)
        self.optimizer = AdamW(parameters, self.gradients.accumulators, config, compiled)
        self._pipeline: Pipeline | None = None
        if mesh.layout.pp > 1:
            sums = {p.name: a for p, a in zip(parameters, self.gradients.accumulators, strict=True)}
            usual = "interleaved" if mesh.layout.vpp > 1 else "1f1b"
            self._pipeline = Pipeline(model, sums, schedule or usual, compiled)
        self._accumulate = compiled(self._make_accumulate())
        self._evaluate = compiled(self._make_evaluate())

    def step(self, batches: Sequence[Batch], lr: float) -> StepResult:
        """Forward and backward over the micro-batches, reduction, clipping, update.

        Raises:
            UserError: no token of the global batch has a target.
        """
        tokens = self._sum_counts([count_valid(batch["labels"]) for batch in batches])
        if not tokens:
            raise UserError("data: a global batch has no token to learn from; every label in it is ignored")
        self.gradients.zero()
        scale = Tensor(1 / tokens, ms.float32)
        sums = self._forward_backward([_tensors(batch) for batch in batches], scale)
        self.gradients.all_reduce()
        loss = self._sum_losses(sums) / tokens
        norm = self.gradients.norm()
        is_finite = not agree(not (math.isfinite(loss) and math.isfinite(norm)), self.mesh)
        if is_finite:
            self.optimizer.update(lr, clip_factor(norm, self.config.clip_norm))
        return StepResult(loss, norm, tokens, is_finite)

    def evaluate(self, batches: Iterable[Batch]) -> tuple[float, int]:
        """Mean loss over the valid tokens that all ranks' batches hold together, and their number."""
        sums, counts = [], []
        for batch in batches:
            if self._pipeline is not None:
                sums += self._pipeline.evaluate([_tensors(batch)])
            else:
                sums.append(self._evaluate(*_tensors(batch)))
            counts.append(count_valid(batch["labels"]))
        tokens = self._sum_counts(counts)
        total = self._sum_losses(sums)
        if not tokens:
            raise UserError("data: the validation split has no token to evaluate on")
        return total / tokens, tokens

    def _forward_backward(self, batches: list[Inputs], scale: Tensor) -> list[Tensor]:
        """Adds the gradients to the accumulators; gives the summed losses that this rank computed."""
        if self._pipeline is not None:
            return self._pipeline.accumulate(batches, scale)
        return [self._accumulate(*batch, scale) for batch in batches]

    def _sum_counts(self, counts: Sequence[int]) -> int:
        # Whole sequences are counted, which context-parallel ranks share.
        return int(all_reduce(Tensor([sum(counts)], ms.int64), self._data).asnumpy()[0])

    def _sum_losses(self, sums: Sequence[Tensor]) -> float:
        local = math.fsum(float(value.asnumpy()) for value in sums)
        return float(all_reduce(Tensor([local], ms.float32), self._parts).asnumpy()[0])

    def _make_accumulate(self) -> Callable[..., Tensor]:
        model, accumulators = self.model, self.gradients.accumulators
        parameters = self.optimizer.parameters
        count = len(parameters)

        def scaled_loss(input_ids: Tensor, mask: Tensor, labels: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
            total, _ = model.loss(input_ids, labels, mask)
            return total * scale, total

        differentiate = ms.value_and_grad(scaled_loss, None, parameters, has_aux=True)

        def accumulate(input_ids: Tensor, mask: Tensor, labels: Tensor, scale: Tensor) -> Tensor:
            (_, total), gradients = differentiate(input_ids, mask, labels, scale)
            for i in range(count):
                ops.assign_add(accumulators[i], gradients[i])
            return total

        return accumulate

    def _make_evaluate(self) -> Callable[..., Tensor]:
        model = self.model

        def evaluate(input_ids: Tensor, mask: Tensor, labels: Tensor) -> Tensor:
            return model.loss(input_ids, labels, mask)[0]

        return evaluate


def _tensors(batch: Batch) -> Inputs:
    return Tensor(batch["input_ids"]), Tensor(batch["attention_mask"]), Tensor(batch["labels"])


def _as_it_is(function: Callable[..., Any]) -> Callable[..., Any]:
    return function
