"""`tape.backward` against torch: shared forwards, graphs gone through twice, branches, several optimizers."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch

# The recording that the import switches on is for a whole process, so the MindSpore side has one of its own.
CASES = '''
import json, sys
import numpy as np
if sys.argv[1] == "torch":
    import torch
    from torch import nn
    tensor, Linear, Adam, SGD = torch.from_numpy, nn.Linear, torch.optim.Adam, torch.optim.SGD
    no_grad = torch.no_grad
    def backward(loss, **kwargs): loss.backward(**kwargs)
    def numpy(t): return None if t is None else t.detach().numpy().copy()
else:
    import mindspore
    mindspore.runtime.launch_blocking()
    from mindspore import Tensor as tensor
    from ms_models.compat.autograd import no_grad
    from ms_models.compat.backward import backward_of
    from ms_models.compat.layers import Linear
    from ms_models.compat.optim import SGD, Adam
    from ms_models.compat.tape import backward
    def numpy(t): return None if t is None else t.asnumpy().copy()

rng = np.random.default_rng(0)
x, z = tensor(rng.normal(size=(5, 3)).astype("float32")), tensor(rng.normal(size=(5, 2)).astype("float32"))

def fill(layer, phase):
    for i, p in enumerate([layer.weight, layer.bias]):
        values = np.sin(np.arange(np.prod(p.shape)) + i + phase).reshape(p.shape).astype("float32")
        if sys.argv[1] == "torch":
            p.data.copy_(torch.from_numpy(values))
        else:
            p.set_data(mindspore.Tensor(values))
    return layer

def grads(*layers):
    return [numpy(getattr(p, "grad", None)) for l in layers for p in (l.weight, l.bias)]

def shared():
    a, b = fill(Linear(3, 2), 0.0), fill(Linear(2, 1), 1.0)
    h = a(x)
    first, second = (h * h).mean(), b(h).mean()
    backward(first, retain_graph=True)
    backward(second)
    return grads(a, b)

def twice():
    a = fill(Linear(3, 2), 0.5)
    loss = (a(x) ** 2).sum()
    backward(loss, retain_graph=True)
    backward(loss)
    return grads(a)

def not_reached():
    a, b = fill(Linear(3, 2), 0.0), fill(Linear(3, 2), 1.0)
    b(x)
    backward((a(x) * z).sum())
    return grads(a, b)

def weighted():
    a = fill(Linear(3, 2), 0.0)
    backward(a(x) ** 2, gradient=z)
    return grads(a)

def only_inputs():
    a = fill(Linear(3, 2), 0.0)
    backward((a(x) ** 2).sum(), inputs=[a.weight])
    return grads(a)

def game():
    """Two optimizers, one forward of the generator for both losses, a branch."""
    g, d = fill(Linear(2, 3), 0.0), fill(Linear(3, 1), 1.0)
    opt_g = Adam([g.weight, g.bias], lr=0.01)
    opt_d = SGD([d.weight, d.bias], lr=0.1, momentum=0.5)
    out = []
    for step in range(4):
        fake = g(z)
        opt_d.zero_grad()
        loss_d = (d(fake.detach() if sys.argv[1] == "torch" else mindspore.ops.stop_gradient(fake)) ** 2).mean()
        loss_d = loss_d + ((d(x) - 1) ** 2).mean()
        if step != 1:
            backward(loss_d)
            opt_d.step()
        opt_g.zero_grad()
        loss_g = ((d(fake) - 1) ** 2).mean()
        backward(loss_g)
        opt_g.step()
        out += [numpy(loss_d), numpy(loss_g)]
    with no_grad():
        out.append(numpy(d(g(z))))
    return out

result = {f.__name__: [None if v is None else np.asarray(v).tolist() for v in f()]
          for f in (shared, twice, not_reached, weighted, only_inputs, game)}
if sys.argv[1] != "torch":
    errors = []
    a = fill(Linear(3, 2), 0.0)
    loss = (a(x) ** 2).sum()
    backward(loss)
    for attempt in (lambda: backward(loss), lambda: backward(a(x)), lambda: backward((x * 2).sum())):
        try:
            attempt()
            errors.append(None)
        except RuntimeError as error:
            errors.append(str(error))
    with no_grad():
        hidden = a(x).sum()
    try:
        backward(hidden)
        errors.append(None)
    except RuntimeError as error:
        errors.append(str(error))
    # a gradient function in between leaves the recording on
    backward_of(lambda: a(x).sum(), a)()
    a.weight.grad = a.bias.grad = None
    backward((a(x) ** 2).sum())
    result["after"] = [v.tolist() for v in grads(a)]
    result["errors"] = errors
print(json.dumps(result))
'''
RTOL, ATOL = 1e-5, 1e-6  # fp32 sums in another order
NAMES = ("shared", "twice", "not_reached", "weighted", "only_inputs", "game")


def run(side: str) -> dict[str, list]:
    done = subprocess.run([sys.executable, "-c", CASES, side], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def results() -> tuple[dict[str, list], dict[str, list]]:
    return run("torch"), run("mindspore")


@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_those_of_torch(name: str, results: tuple[dict[str, list], dict[str, list]]) -> None:
    want, have = results[0][name], results[1][name]
    assert [v is None for v in want] == [v is None for v in have]
    for left, right in zip(want, have, strict=True):
        if left is not None:
            torch.testing.assert_close(torch.tensor(right), torch.tensor(left), rtol=RTOL, atol=ATOL)


def test_what_cannot_be_differentiated_raises(results: tuple[dict[str, list], dict[str, list]]) -> None:
    errors = results[1]["errors"]
    assert all(errors)
    assert "twice" in errors[0] and "scalar" in errors[1]
    assert "not recorded" in errors[2] and "not recorded" in errors[3]


def test_a_gradient_function_in_between_leaves_the_recording_on(
    results: tuple[dict[str, list], dict[str, list]],
) -> None:
    assert len(results[1]["after"]) == 2
    assert any(any(row) if isinstance(row, list) else row for row in results[1]["after"][0])
