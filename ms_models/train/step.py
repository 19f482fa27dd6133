"""One optimizer step and one evaluation, the same code for every layout.

A step's loss and gradients are divided by the number of valid tokens of the whole global batch (over accumulation and
data-parallel ranks) before the backward pass, so that every token weighs the same however the batch is dealt out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import mindspore as ms
import numpy as np
from mindspore import Tensor

from mappings.errors import UserError
from ms_models.compat.device import synchronize
from ms_models.data.loader import Batch
from ms_models.data.packing import IGNORED
from ms_models.families.causal_lm import CausalLM
from ms_models.parallel.collectives import all_reduce
from ms_models.parallel.mesh import Mesh
from ms_models.parallel.parameter_sharding import ParameterSharding
from ms_models.parallel.pipeline import Inputs, Pipeline
from ms_models.train.backward import Backward
from ms_models.train.config import GuardConfig, OptimizerConfig, PrecisionConfig
from ms_models.train.evaluation import Evaluation, evaluate
from ms_models.train.gradients import GradientBuffers, agree_all, clip_factor
from ms_models.train.loss_scale import LossScale
from ms_models.train.optimizer import AdamW, shard
from ms_models.train.parameter_groups import ParameterGroups
from ms_models.train.phases import enter
from ms_models.train.precision import check_precision
from ms_models.train.spikes import Spikes

Outcome = Literal["updated", "overflow", "non_finite", "spike"]


@dataclass(frozen=True)
class StepResult:
    """What one step did; the same on every rank."""

    loss: float
    """Mean over the valid tokens of the global batch."""
    grad_norm: float
    """Before clipping."""
    tokens: int
    """Valid tokens of the global batch."""
    outcome: Outcome = "updated"
    """What became of the step: `overflow` (fp16 gradients, answered by a smaller loss scale), `non_finite` (loss or
    norm on some rank) and `spike` left everything as it was."""
    reason: str | None = None
    """Of a spike: what is far above what."""
    loss_scale: float = 1.0
    """What the loss was multiplied by in this step."""
    update_ratio: float | None = None
    """Norm of what was added to all parameters over the norm that they had; None where nothing was updated."""

    @property
    def is_updated(self) -> bool:
        """Whether the step was taken."""
        return self.outcome == "updated"

    @property
    def is_finite(self) -> bool:
        """Whether loss and gradient norm were finite."""
        return self.outcome in ("updated", "spike")

    def record(self) -> dict[str, Any]:
        """Fields of a record of metrics.jsonl; JSON has no number that is not finite."""
        return {
            "loss": self.loss if self.is_finite else None,
            "grad_norm": self.grad_norm if self.is_finite else None,
            "outcome": self.outcome,
            "loss_scale": self.loss_scale,
            "update_ratio": self.update_ratio,
        }


def count_valid(labels: np.ndarray) -> int:
    """Positions that have a target once labels are shifted by one."""
    return int((labels[:, 1:] != IGNORED).sum())


class Trainer:
    """The model, its gradients and its optimizer on one rank.

    Attributes:
        loss_scale: of fp16; its state belongs into a checkpoint.
        spikes: losses and gradient norms of the last updates; as well.
    """

    def __init__(
        self,
        model: CausalLM,
        mesh: Mesh,
        config: OptimizerConfig,
        *,
        jit: bool,
        count_valid: Callable[[np.ndarray], int] = count_valid,
        precision: PrecisionConfig | None = None,
        guard: GuardConfig | None = None,
    ) -> None:
        precision = precision or PrecisionConfig()
        check_precision(precision, model)
        ParameterGroups(config).check([parameter.name for parameter in model.trainable_params()], mesh)
        self.loss_scale, self.spikes = LossScale(precision), Spikes(guard or GuardConfig())
        self.model, self.mesh, self.config, self._count_valid = model, mesh, config, count_valid
        self._data = mesh.group("dp")
        self._parts = mesh.group("dp", "cp", "pp")
        self._world = mesh.group("tp", "cp", "dp", "pp")
        compiled: Callable[[Any], Any] = ms.jit if jit else _as_it_is
        self.sharding = shard(model, config)
        self.gradients = GradientBuffers(self.sharding)
        self.divided: ParameterSharding | None = None
        if mesh.layout.zero == 3:
            assert not jit and mesh.layout.pp == 1, "parameters change their size, which compiled graphs do not see"
            self.divided = ParameterSharding(model.body.layers, self.sharding, self.gradients.adder)
        self.optimizer = AdamW(self.sharding, config, compiled, None if self.divided is None else self.divided.kept)
        self._passes: Backward | Pipeline
        if mesh.layout.pp > 1:
            self._passes = Pipeline(model, self.gradients.adder, compiled)
        else:
            self._passes = Backward(model, self.gradients.adder, compiled, self.divided)

    def step(self, batches: Sequence[Batch], lr: float) -> StepResult:
        """Forward and backward over the micro-batches, reduction, clipping, update.

        Raises:
            UserError: no token of the global batch has a target.
        """
        enter("compute")
        tokens = self._sum_counts([self._count_valid(batch["labels"]) for batch in batches])
        if not tokens:
            raise UserError("data: a global batch has no token to learn from; every label in it is ignored")
        self.gradients.zero()
        factor = self.loss_scale.factor
        scale = Tensor(factor / tokens, ms.float32)
        sums = self._forward_backward([_tensors(batch) for batch in batches], scale)
        enter("reduce")
        gradients = self.gradients.reduce()
        loss = self._sum_losses(sums) / tokens
        norm = self.gradients.norm(gradients) / factor
        outcome, reason, loss, norm = self._judge(loss, norm)
        self.loss_scale.update(overflowed=outcome == "overflow")
        ratio = None
        if outcome == "updated":
            enter("update")
            self.spikes.add(loss, norm)
            squares = self.optimizer.update(gradients, lr, clip_factor(norm, self.config.clip_norm) / factor)
            moved, size = all_reduce(squares, self._world).asnumpy()
            ratio = math.sqrt(moved / size) if size > 0 else None
        synchronize()  # a compiled update may still be under way, and weights be read without waiting for it
        return StepResult(loss, norm, tokens, outcome, reason, factor, ratio)

    def describe(self, micro_batches: int) -> str:
        """Number format, and how often gradients cross the ranks in a step, for the person who watches."""
        calls, buckets = self.sharding.collectives(micro_batches), len(self.sharding.buckets)
        crossing = f", gradients in {buckets} buffers and {calls} calls per step" if calls else ""
        return f"{self.loss_scale.config.compute}{crossing}"

    def states(self) -> dict[str, LossScale | Spikes]:
        """What a checkpoint has to remember besides weights and optimizer, by name."""
        return {"loss_scale": self.loss_scale, "updates": self.spikes}

    def evaluate(self, batches: Iterable[Batch]) -> Evaluation:
        """Loss and hits over the batches that all ranks hold together; every rank calls it."""
        return evaluate(self.model, self._passes, self.mesh, batches, self._count_valid)

    def _judge(self, loss: float, norm: float) -> tuple[Outcome, str | None, float, float]:
        """What is to become of the step, decided by all ranks together, with loss and norm as they are to be told."""
        reason = self.spikes.reason(loss, norm)
        flags = [not math.isfinite(loss), not math.isfinite(norm), reason is not None]
        no_loss, no_norm, is_spike = agree_all(flags, self.mesh)
        # A rank that computed a number tells what another one saw.
        loss = math.nan if no_loss and math.isfinite(loss) else loss
        norm = math.nan if no_norm and math.isfinite(norm) else norm
        if no_norm and not no_loss and self.loss_scale.can_shrink:
            return "overflow", None, loss, norm
        if no_loss or no_norm:
            return "non_finite", None, loss, norm
        return ("spike", reason, loss, norm) if is_spike else ("updated", None, loss, norm)

    def _forward_backward(self, batches: list[Inputs], scale: Tensor) -> list[Tensor]:
        """Adds the gradients to the accumulators; gives the summed losses that this rank computed."""
        return self._passes.accumulate(batches, scale)

    def _sum_counts(self, counts: Sequence[int]) -> int:
        # Whole sequences are counted, which context-parallel ranks share.
        return int(all_reduce(Tensor([sum(counts)], ms.int64), self._data).asnumpy()[0])

    def _sum_losses(self, sums: Sequence[Tensor]) -> float:
        local = math.fsum(float(value.asnumpy()) for value in sums)
        return float(all_reduce(Tensor([local], ms.float32), self._parts).asnumpy()[0])


def _tensors(batch: Batch) -> Inputs:
    return Tensor(batch["input_ids"]), Tensor(batch["attention_mask"]), Tensor(batch["labels"])


def _as_it_is(function: Callable[..., Any]) -> Callable[..., Any]:
    return function
