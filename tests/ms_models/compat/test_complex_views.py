"""Products of complex numbers and their gradients against torch."""

from __future__ import annotations

import mindspore as ms
import numpy as np
import pytest
import torch

from ms_models.compat.complex_views import product, view_as_complex, view_as_real

ms.runtime.launch_blocking()


@pytest.mark.parametrize("shapes", [((4, 3, 2), (3, 2)), ((2, 1, 2), (1, 5, 2))])
def test_product_and_its_gradients(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    rng = np.random.default_rng(0)
    x, f = (rng.normal(size=shape).astype(np.float32) for shape in shapes)
    tx, tf = (torch.tensor(value, requires_grad=True) for value in (x, f))
    want = torch.view_as_real(torch.view_as_complex(tx) * torch.view_as_complex(tf))
    weights = rng.normal(size=tuple(want.shape)).astype(np.float32)
    (want * torch.from_numpy(weights)).sum().backward()

    def loss(x: ms.Tensor, f: ms.Tensor) -> tuple[ms.Tensor, ms.Tensor]:
        made = view_as_real(product(view_as_complex(x), view_as_complex(f)))
        return (made * ms.Tensor(weights)).sum(), made

    (_, made), gradients = ms.value_and_grad(loss, (0, 1), has_aux=True)(ms.Tensor(x), ms.Tensor(f))
    for have, expected in ((made, want.detach()), (gradients[0], tx.grad), (gradients[1], tf.grad)):
        np.testing.assert_allclose(have.asnumpy(), expected.numpy(), rtol=1e-5, atol=1e-6)  # fp32 sums


def test_a_real_side_is_a_plain_product() -> None:
    pairs = np.arange(6, dtype=np.float32).reshape(3, 2)
    made = product(view_as_complex(ms.Tensor(pairs)), 2.0)
    assert view_as_real(made).asnumpy().tolist() == (2 * pairs).tolist()
    assert product(ms.Tensor([2.0]), ms.Tensor([3.0])).asnumpy().tolist() == [6.0]
