"""`AdamDirection`: Adam's moments and the step that follows from them, in one kernel where there is one."""

from __future__ import annotations

import math
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops


class AdamDirection(nn.Cell):
    """Updates two moments and gives what is added to the parameter (Kingma and Ba, arXiv 1412.6980).

    `m += (g - m) (1 - beta1)`, `v = v beta2 + g**2 (1 - beta2)`, and the result is
    `-lr / (1 - beta1**t) * m / (sqrt(v / (1 - beta2**t)) + eps)`: torch's arithmetic.

    On CPU a fused kernel does it, five times as fast as operation by operation. It takes `1 - beta` in fp32, which is
    off by 1e-5 of itself for 0.999; a moment is too large by that constant factor then, and `numbers` takes it out of
    the step again.

    Args:
        betas: of the two moments.
        eps: added to the root of the second moment.
        fused: whether to use the kernel; by device where not given.
    """

    def __init__(self, betas: tuple[float, float], eps: float, *, fused: bool | None = None) -> None:
        super().__init__(auto_prefix=False)
        self.betas, self.eps = betas, eps
        self.rests = tuple(1 - beta for beta in betas)  # not in `construct`: a graph subtracts in fp32
        self.fused = ms.get_current_device()[0] == "CPU" if fused is None else fused
        # Powers of beta are taken on the host, in double precision: the kernel is told that they are zero.
        self.kernel: Any = ops.AdamNoUpdateParam() if self.fused else None
        self.nothing = Tensor(0.0, ms.float32)
        self.beta_tensors = tuple(Tensor(beta, ms.float32) for beta in betas)

    def numbers(self, lr: float, step: int) -> tuple[float, float]:
        """What `construct` needs of the learning rate and the number of this update (from 1): `size` and `eps`."""
        beta1, beta2 = self.betas
        excess = [_excess(beta) if self.fused else 1.0 for beta in self.betas]
        root = math.sqrt((1 - beta2**step) * excess[1])
        return lr * root / ((1 - beta1**step) * excess[0]), self.eps * root

    def construct(self, m: Parameter, v: Parameter, gradient: Tensor, size: Tensor, eps: Tensor) -> Tensor:
        """What is added to the parameter, fp32 in the shape of `gradient`; the moments are changed.

        Args:
            m: first moment, fp32.
            v: second moment, fp32.
            gradient: fp32.
            size: scalar, see `numbers`.
            eps: scalar, see `numbers`.
        """
        if self.fused:
            beta1, beta2 = self.beta_tensors
            return self.kernel(m, v, self.nothing, self.nothing, size, beta1, beta2, eps, gradient)
        first = m + (gradient - m) * self.rests[0]
        second = v * self.betas[1] + gradient * gradient * self.rests[1]
        ops.assign(m, first)
        ops.assign(v, second)
        return -size * (first / (ops.sqrt(second) + eps))


def _excess(beta: float) -> float:
    """`1 - beta` in fp32 over its true value."""
    return float(np.float32(1) - np.float32(beta)) / (1 - beta)
