"""Models as graphs in the middle of what a tape goes through: values, gradients and statistics as without graphs."""

from __future__ import annotations

import warnings
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, ops

from ms_models.compat import autograd, graph_call, tape
from ms_models.compat.batch_layers import BatchNorm1d
from ms_models.compat.containers import Sequential
from ms_models.compat.layers import Linear
from ms_models.compat.module import Module
from ms_models.compat.optim import Adam
from ms_models.compat.random import manual_seed

ms.runtime.launch_blocking()


class Net(Module):
    def __init__(self, size: int, out: int) -> None:
        super().__init__()
        self.layers = Sequential(Linear(size, 8, bias=False), BatchNorm1d(8))
        self.head = Linear(8, out, bias=False)  # the gradient of a bias in front of a norm is nothing but rounding

    def construct(self, x: Tensor) -> Tensor:
        return self.head(ops.tanh(self.layers(x)))


def adversaries(compiled: bool, steps: int = 5) -> list[np.ndarray]:
    """Two models, two optimizers, one forward pass of the generator for both losses."""
    manual_seed(0)
    generator, critic = Net(3, 4), Net(4, 1)
    g, d = (graph_call.as_graph(m) if compiled else m for m in (generator, critic))
    of_generator, of_critic = Adam(generator.parameters(), lr=1e-2), Adam(critic.parameters(), lr=1e-2)
    tape.record()
    found: list[Any] = []
    for number in range(steps):
        rng = np.random.default_rng(number)
        real = Tensor(rng.normal(size=(6, 4)).astype(np.float32))
        of_critic.zero_grad()
        loss = ops.relu(1 - d(real)).mean()
        tape.backward(loss)
        fake = g(Tensor(rng.normal(size=(6, 3)).astype(np.float32)))
        loss_of_fake = ops.relu(1 + d(ops.stop_gradient(fake))).mean()
        tape.backward(loss_of_fake)
        of_critic.step()
        of_generator.zero_grad()
        loss_of_generator = -d(fake).mean()
        tape.backward(loss_of_generator)
        of_generator.step()
        found += [loss, loss_of_fake, loss_of_generator]
    found += [p.grad for m in (generator, critic) for p in m.parameters()]
    found += [t for m in (generator, critic) for t in [*m.parameters(), *m.buffers()]]
    return [value.asnumpy().copy() for value in found]


def test_two_optimizers_and_a_shared_forward_pass() -> None:
    want = adversaries(False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        have = adversaries(True)
    for a, b in zip(want, have, strict=True):
        # Adam divides by the root of tiny second moments, which magnifies the rounding of another order of sums.
        np.testing.assert_allclose(b, a, 1e-4, 1e-5)
    made = list(graph_call._calls.values())[-2:]
    # The critic has one graph for inputs that need a gradient, and one for those that do not.
    graphs = [sum(hasattr(graph, "_run") for graph in call.graphs.values()) for call in made]
    assert sorted(graphs) == [1, 2]


def test_without_gradients_the_model_itself_is_called() -> None:
    model = Net(3, 1)
    call = graph_call.as_graph(model)
    with autograd.no_grad():
        for _ in range(4):
            call(ops.ones((2, 3)))
    assert call.graphs == {}


def test_what_cannot_be_recorded_stays_eager() -> None:
    class Branches(Net):
        def construct(self, x: Tensor) -> Tensor:
            return super().construct(x) if x.sum() > 0 else x

    call = graph_call.as_graph(Branches(3, 1))
    tape.record()
    call(ops.ones((2, 3)))
    with pytest.warns(UserWarning, match="a value is read back"):
        call(ops.ones((2, 3)))
    assert call(-ops.ones((2, 3))).shape == (2, 3)
