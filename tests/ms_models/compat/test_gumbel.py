"""The straight-through estimator: one-hot values with the gradient of the softmax."""

from __future__ import annotations

import mindspore as ms
import numpy as np

from ms_models.compat.gumbel import gumbel_softmax
from ms_models.compat.random import manual_seed


def test_hard_samples_are_one_hot_and_have_the_gradient_of_soft_ones() -> None:
    logits = ms.Tensor(np.random.default_rng(0).standard_normal((6, 5)).astype(np.float32))
    weights = ms.Tensor(np.arange(30, dtype=np.float32).reshape(6, 5))
    results = {}
    for hard in (False, True):
        manual_seed(3)
        value = gumbel_softmax(logits, 0.8, hard).asnumpy()
        manual_seed(3)
        gradient = ms.grad(lambda x, hard=hard: (gumbel_softmax(x, 0.8, hard) * weights).sum())(logits).asnumpy()
        results[hard] = value, gradient
    soft, hard_one = results[False], results[True]
    np.testing.assert_allclose(hard_one[0], np.eye(5)[soft[0].argmax(1)], atol=1e-6)  # 1 - s + s in float32
    # In float32, where terms of up to 29 cancel.
    np.testing.assert_allclose(hard_one[1], soft[1], rtol=1e-6, atol=2e-6)
    assert np.abs(soft[1]).max() > 0.1
