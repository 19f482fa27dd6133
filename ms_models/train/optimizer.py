"""AdamW with PyTorch's arithmetic, one jitted update for all parameters.

Why not `mindspore.experimental.optim.AdamW`, which agrees with torch as well: measured on 50 parameters (1 M elements,
2 cores) its jitted update compiles in 4.1 s against 1.6 s here, at the same 35-39 ms per step, and it keeps a third
moment per parameter that AdamW does not use (half as much optimizer memory again).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, ops

from mappings.errors import UserError
from ms_models.train.config import OptimizerConfig

MOMENTS = ("exp_avg", "exp_avg_sq")


def decays(shape: Sequence[int]) -> bool:
    """Whether weight decay applies: to matrices (embeddings included), not to norms and biases."""
    return len(shape) >= 2


class AdamW:
    """Decoupled weight decay (Loshchilov and Hutter, arXiv 1711.05101), bias-corrected as in torch.optim.AdamW.

    Attributes:
        step: updates made so far.
    """

    def __init__(
        self,
        parameters: Sequence[Parameter],
        gradients: ParameterTuple,
        config: OptimizerConfig,
        compiled: Callable[[Any], Any],
    ) -> None:
        self.config = config
        self.step = 0
        self.parameters = ParameterTuple(list(parameters))
        self.moments = {
            moment: ParameterTuple(
                [Parameter(Tensor(np.zeros(p.shape, np.float32)), name=f"{moment}.{p.name}") for p in parameters]
            )
            for moment in MOMENTS
        }
        self._update = compiled(self._make_update(gradients))

    def update(self, lr: float, scale: float) -> None:
        """One step with the gradients times `scale`. New numbers do not recompile: they enter as tensors."""
        self.step += 1
        beta1, beta2 = self.config.betas
        # In double precision on the host, as torch does: 1 - 0.999 in fp32 is off by 1e-5 of itself.
        scalars = (
            scale,
            1 - lr * self.config.weight_decay,
            lr / (1 - beta1**self.step),
            float(np.sqrt(1 - beta2**self.step)),
        )
        self._update(*(Tensor(value, ms.float32) for value in scalars))

    def state(self) -> dict[str, np.ndarray]:
        """Moments as fp32 arrays by `<moment>.<parameter name>`."""
        return {moment.name: moment.asnumpy() for moments in self.moments.values() for moment in moments}

    def load_state(self, state: Mapping[str, np.ndarray], step: int, where: str) -> None:
        """Restores moments and step.

        Raises:
            UserError: a moment is missing, superfluous or misshapen; lists them all.
        """
        own = {moment.name: moment for moments in self.moments.values() for moment in moments}
        problems = [f"{name} is missing" for name in own if name not in state]
        problems += [f"{name} is unexpected" for name in state if name not in own]
        problems += [
            f"{name} has shape {list(value.shape)} instead of {list(own[name].shape)}"
            for name, value in state.items()
            if name in own and value.shape != tuple(own[name].shape)
        ]
        if problems:
            raise UserError(f"{where}: optimizer state does not fit the model: {'; '.join(problems[:8])}")
        for name, moment in own.items():
            ops.assign(moment, Tensor(state[name]))
        self.step = step

    def _make_update(self, gradients: ParameterTuple) -> Callable[..., Tensor]:
        parameters, (first, second) = self.parameters, self.moments.values()
        count = len(parameters)
        decaying = tuple(decays(p.shape) for p in parameters)
        beta1, beta2 = self.config.betas
        eps = self.config.eps

        def update(scale: Tensor, decay: Tensor, step_size: Tensor, root: Tensor) -> Tensor:
            for i in range(count):
                gradient = gradients[i] * scale
                m = first[i] + (gradient - first[i]) * (1 - beta1)
                v = second[i] * beta2 + gradient * gradient * (1 - beta2)
                kept = parameters[i] * decay if decaying[i] else parameters[i]
                ops.assign(first[i], m)
                ops.assign(second[i], v)
                ops.assign(parameters[i], kept - step_size * (m / (ops.sqrt(v) / root + eps)))
            return scale

        return update
