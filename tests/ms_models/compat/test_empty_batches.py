"""A layer that gets nothing, such as an expert without tokens, gets zero gradients, not what was in memory."""

from __future__ import annotations

import mindspore as ms
import numpy as np
import pytest
import torch

from ms_models.compat.layers import Linear

ms.runtime.launch_blocking()


class Loss(ms.nn.Cell):
    """A loss that a layer without rows takes part in."""

    def __init__(self, layer: Linear) -> None:
        super().__init__()
        self.layer = layer

    def construct(self, nothing: ms.Tensor, rows: ms.Tensor) -> ms.Tensor:
        joined = ms.ops.cat((self.layer(nothing).reshape((-1, 3)), rows))
        return (joined * joined).sum()


@pytest.mark.parametrize("shape", [(0, 5), (2, 0, 5)])
@pytest.mark.parametrize("compiled", [False, True])
def test_linear_without_rows(shape: tuple[int, ...], compiled: bool) -> None:
    layer, reference = Linear(5, 3), torch.nn.Linear(5, 3)
    rows = np.arange(6, dtype=np.float32).reshape(2, 3)
    joined = torch.cat((reference(torch.zeros(shape)).reshape(-1, 3), torch.from_numpy(rows)))
    (joined * joined).sum().backward()
    gradient = ms.value_and_grad(Loss(layer), None, layer.trainable_params())
    run = ms.jit(gradient) if compiled else gradient
    for _ in range(5):  # uninitialised memory is zero now and then
        dirt = ms.Tensor(np.full(4096, 7.0, np.float32)) + 1
        del dirt
        value, gradients = run(ms.Tensor(np.zeros(shape, np.float32)), ms.Tensor(rows))
        assert value.asnumpy() == 55
        for have, want in zip(gradients, reference.parameters(), strict=True):
            assert want.grad is not None
            assert have.asnumpy().tolist() == want.grad.tolist()
