"""`Log`: a logarithm that does not depend on how its work is divided."""

from __future__ import annotations

import mindspore as ms
from mindspore import Tensor, nn, ops


class Log(nn.Cell):
    """Natural logarithm, fp32.

    On CPU it is taken in fp64: MindSpore's fp32 kernel gives other last digits at the ends of the pieces in which its
    threads work, and tries several divisions in its first calls, so a resumed run would not have the loss of the run
    that went on. Measured on 2.10.0: of 4,096 values 1,739 differ between one call and calls of 7 values each; in fp64
    none, and all are the correctly rounded ones.
    """

    def __init__(self) -> None:
        super().__init__()
        self.dtype = ms.float64 if ms.get_current_device()[0] == "CPU" else ms.float32

    def construct(self, x: Tensor) -> Tensor:
        """The logarithm of `x`, of any shape, fp32."""
        return ops.log(x.astype(self.dtype)).astype(ms.float32)
