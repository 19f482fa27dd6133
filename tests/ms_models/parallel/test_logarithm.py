"""The logarithm of the loss is the same however many values stand beside one."""

from __future__ import annotations

from collections.abc import Callable

import mindspore as ms
import numpy as np
from mindspore import Tensor, ops

from ms_models.parallel.logarithm import Log


def differing(function: Callable[[Tensor], Tensor], values: np.ndarray) -> int:
    """How many results of one call are others in calls of seven values each, which is how threads may divide it."""
    whole = function(Tensor(values)).asnumpy()
    pieces = [function(Tensor(values[first : first + 7])).asnumpy() for first in range(0, len(values), 7)]
    return int((whole != np.concatenate(pieces)).sum())


def test_no_digit_depends_on_the_division_of_the_work() -> None:
    ms.runtime.launch_blocking()
    values = np.random.default_rng(0).uniform(1, 60, 4096).astype(np.float32)
    assert differing(Log(), values) == 0
    np.testing.assert_array_equal(Log()(Tensor(values)).asnumpy(), np.log(values.astype(np.float64)).astype(np.float32))
    # The fault that it is there for; were it gone from MindSpore, `Log` could go, too.
    assert differing(ops.log, values) > 100


def test_its_gradient_is_the_reciprocal() -> None:
    ms.runtime.launch_blocking()
    values = np.random.default_rng(1).uniform(0.1, 60, 100).astype(np.float32)
    log = Log()
    gradient = ms.grad(lambda x: log(x).sum())(Tensor(values)).asnumpy()
    np.testing.assert_allclose(gradient, 1 / values, rtol=1e-7)
