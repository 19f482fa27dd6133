"""Cases that build something with a life of its own: layers, optimizers, schedules."""

from __future__ import annotations

from typing import Any

import mindspore as ms
import numpy as np
import torch
from row_comparison import as_array, differences
from row_running import Case


def check_layer(case: Case, call: str, training: bool = False) -> list[str]:
    """A layer: names and shapes of its state, then outputs and every gradient from torch's weights."""
    torch.manual_seed(0)
    layer = case.run_torch({})[0].train(training)
    cell = case.run_mindspore({})
    if not isinstance(cell, ms.nn.Cell):
        return [f"a {type(cell).__name__} is no Cell"]
    found = differences({n: list(v.shape) for n, v in layer.state_dict().items()}, _shapes(cell), "state")
    if found:
        return found
    cell.load_state_dict({name: ms.Tensor(value.numpy()) for name, value in layer.state_dict().items()})
    cell.set_train(training)
    caller = Case(call, case.converted, f"{case.label} call")
    inputs = caller.torch_inputs(grad=True)
    arguments = [inputs[name] for name in _words(call)]
    output = layer(*arguments)
    weights = np.cos(np.arange(output.numel(), dtype=np.float32)).reshape(tuple(output.shape))
    (output * torch.from_numpy(weights)).sum().backward()
    parameters = list(cell.trainable_params())

    def weighted(*args: ms.Tensor) -> Any:
        result = cell(*args)
        return (result * ms.Tensor(weights)).sum(), result

    ms_inputs = [caller.ms_inputs()[name] for name in _words(call)]
    if parameters:
        (_, result), gradients = ms.value_and_grad(weighted, None, parameters, has_aux=True)(*ms_inputs)
    else:
        (_, result), gradients = weighted(*ms_inputs), ()
    found = differences(output, result)
    for (name, parameter), gradient in zip(layer.named_parameters(), gradients, strict=True):
        # gradients are sums over all positions
        found += differences(parameter.grad, gradient, f"gradient of {name}", rtol=1e-4, atol=1e-5)
    return found


def _words(call: str) -> list[str]:
    return [word.strip() for word in call.split(",")]


def _shapes(cell: ms.nn.Cell) -> dict[str, list[int]]:
    return {name: list(value.shape) for name, value in cell.state_dict().items()}


def check_optimizer(case: Case) -> list[str]:
    """Three updates of two parameters with the same gradients; the case's source has the free variable `params`."""
    rng = np.random.default_rng(1)
    start = [rng.standard_normal((3, 4)).astype(np.float32), rng.standard_normal(4).astype(np.float32)]
    theirs = [torch.nn.Parameter(torch.from_numpy(a.copy())) for a in start]
    ours = [ms.Parameter(ms.Tensor(a), name=f"p{i}") for i, a in enumerate(start)]
    expected = case.run_torch({"params": theirs})[0]
    actual = case.run_mindspore({"params": ours})
    for _ in range(3):
        grads = [rng.standard_normal(a.shape).astype(np.float32) for a in start]
        for parameter, gradient in zip(theirs, grads, strict=True):
            parameter.grad = torch.from_numpy(gradient)
        expected.step()
        actual([ms.Tensor(g) for g in grads])
    return differences(theirs, ours, "parameters")


def check_schedule(case: Case) -> list[str]:
    """The rates of eight steps; the case's source has the free variable `optimizer`, with two groups."""
    from ms_models.compat.optim import SGD

    values = [np.ones(2, np.float32), np.ones(3, np.float32)]
    theirs = torch.optim.SGD([{"params": [torch.nn.Parameter(torch.tensor(v))], "lr": r} for v, r in _rates(values)])
    ours = SGD(
        [{"params": [ms.Parameter(ms.Tensor(v), name=f"q{i}")], "lr": r} for i, (v, r) in enumerate(_rates(values))]
    )
    expected, actual = case.run_torch({"optimizer": theirs})[0], case.run_mindspore({"optimizer": ours})
    found = []
    for step in range(8):
        rates = [g["lr"] for g in theirs.param_groups], [g["lr"] for g in ours.param_groups]
        # double precision; torch computes some schedules step by step from the rate before
        found += differences(*rates, f"rates of step {step}", rtol=1e-12, atol=0.0)
        theirs.step()
        expected.step()
        actual.step()
    return found


def _rates(values: list[np.ndarray[Any, Any]]) -> list[tuple[np.ndarray[Any, Any], float]]:
    return list(zip(values, (0.1, 0.01), strict=True))


def check_initial_values(case: Case) -> list[str]:
    """An initialiser of `w` [64, 96]: in place, the same range, mean and spread as torch's, or the same values."""
    theirs, ours = torch.nn.Parameter(torch.full((64, 96), 9.0)), ms.Parameter(ms.ops.ones((64, 96)) * 9.0, name="w")
    torch.manual_seed(0)
    case.run_torch({"w": theirs})
    returned = case.run_mindspore({"w": ours})
    want, got = as_array(theirs), as_array(ours)
    found = [] if returned is ours else ["does not return its argument"]
    if want.std() == 0 or len(np.unique(want)) < 3:
        return found + differences(theirs, ours)
    # 6144 numbers: five standard errors of mean and deviation are under 0.065 deviations
    if abs(want.mean() - got.mean()) > 0.065 * want.std() or abs(got.std() / want.std() - 1) > 0.065:
        found.append(f"mean {want.mean()} deviation {want.std()} against {got.mean()} {got.std()}")
    # the largest of 6144 uniform numbers is within 0.5 % of the bound, that of normal numbers varies by some 25 %
    if abs(np.abs(got).max() / np.abs(want).max() - 1) > 0.25:
        found.append(f"largest value {np.abs(want).max()} against {np.abs(got).max()}")
    return found
