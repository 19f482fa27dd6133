"""`Backward`: loss and gradients of micro-batches, where each rank takes a batch through the whole model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import mindspore as ms
from mindspore import ParameterTuple, Tensor

from ms_models.families.causal_lm import CausalLM
from ms_models.parallel.parameter_sharding import Adder, ParameterSharding
from ms_models.parallel.pipeline import Inputs


class Backward:
    """Forward and backward passes of a rank; `Pipeline` takes its place where a rank has some of the layers.

    Args:
        model: of this rank.
        adder: for some parameters, a function that adds gradients of theirs to what the optimizer reads.
        compiled: `ms.jit`, or the identity.
        divided: where replicas divide the parameters; its layers take their gradients to the adder themselves.
    """

    def __init__(
        self,
        model: CausalLM,
        adder: Adder,
        compiled: Callable[[Any], Any],
        divided: ParameterSharding | None = None,
    ) -> None:
        self._around: Callable[[], AbstractContextManager[None]] = nullcontext if divided is None else divided.gathered
        parameters = ParameterTuple(model.trainable_params()) if divided is None else divided.outside
        add = adder(parameters)

        def scaled_loss(input_ids: Tensor, mask: Tensor, labels: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
            total, _ = model.loss(input_ids, labels, mask)
            return total * scale, total

        differentiate = ms.value_and_grad(scaled_loss, None, parameters, has_aux=True)

        def accumulate(input_ids: Tensor, mask: Tensor, labels: Tensor, scale: Tensor) -> Tensor:
            (_, total), gradients = differentiate(input_ids, mask, labels, scale)
            add(gradients)
            return total

        measures = hasattr(model, "measure")

        def evaluate(input_ids: Tensor, mask: Tensor, labels: Tensor) -> Tensor:
            if measures:
                return model.measure(None, 0, input_ids, labels, mask)
            return model.loss(input_ids, labels, mask)[0]

        self._accumulate = compiled(accumulate)
        self._evaluate = compiled(evaluate)

    def accumulate(self, batches: Sequence[Inputs], scale: Tensor) -> list[Tensor]:
        """Adds the gradients of `scale` times the summed loss; gives the summed loss of each micro-batch, not scaled.

        Args:
            batches: the micro-batches of a step.
            scale: fp32 scalar.
        """
        with self._around():
            return [self._accumulate(*batch, scale) for batch in batches]

    def evaluate(self, batches: Sequence[Inputs]) -> list[Tensor]:
        """What the model measures of each micro-batch, `[2]`; the summed loss of one that measures nothing."""
        with self._around():
            return [self._evaluate(*batch) for batch in batches]
