"""Optimizers that call a closure: its form after conversion, and LBFGS against torch."""

from __future__ import annotations

import copy
from typing import Any

import mindspore as ms
import numpy as np
import pytest
import torch

from ms_models.compat import wolfe
from ms_models.compat.backward import backward_of
from ms_models.compat.optim import SGD, AdamW
from ms_models.compat.optim_lbfgs import LBFGS

RNG = np.random.default_rng(0)
X = RNG.standard_normal((12, 3)).astype(np.float32)
Y = np.tanh(X @ RNG.standard_normal((3, 2)) * 2).astype(np.float32)
START = [RNG.standard_normal((3, 2)).astype(np.float32), np.zeros(2, np.float32)]


def pair(kind: str, **options: Any) -> tuple[Any, Any, Any, Any, list[Any], list[Any]]:
    """The optimizers of both frameworks, closures of a small regression, and the parameters."""
    theirs = [torch.nn.Parameter(torch.tensor(v)) for v in START]
    ours = [ms.Parameter(ms.Tensor(v), name=f"w{i}") for i, v in enumerate(START)]
    reference = getattr(torch.optim, kind)(theirs, **options)
    optimizer = {"SGD": SGD, "AdamW": AdamW, "LBFGS": LBFGS}[kind](ours, **options)
    x, y = torch.tensor(X), torch.tensor(Y)
    u, v = ms.Tensor(X), ms.Tensor(Y)

    def torch_closure() -> torch.Tensor:
        reference.zero_grad()
        z = x @ theirs[0] + theirs[1]
        loss = ((z + 0.1 * z * z * z - y) ** 2).mean()
        loss.backward()
        return loss

    def closure() -> ms.Tensor:
        optimizer.zero_grad()

        def compute_loss() -> ms.Tensor:
            z = ms.ops.matmul(u, ours[0]) + ours[1]
            loss = ((z + 0.1 * z * z * z - v) ** 2).mean()
            return loss

        loss_and_backward = backward_of(compute_loss, ours)

        loss: ms.Tensor = loss_and_backward()
        return loss

    return reference, optimizer, torch_closure, closure, theirs, ours


def check(theirs: list[Any], ours: list[Any], tolerance: float) -> None:
    for t, o in zip(theirs, ours, strict=True):
        assert np.allclose(t.detach().numpy(), o.asnumpy(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("kind", ["SGD", "AdamW"])
def test_closures_of_other_optimizers(kind: str) -> None:
    reference, optimizer, torch_closure, closure, theirs, ours = pair(kind, lr=0.02)
    for _ in range(20):
        expected, loss = reference.step(torch_closure), optimizer.step(closure)
        assert np.isclose(expected.item(), loss.asnumpy(), rtol=1e-5)
    check(theirs, ours, 1e-5)


LBFGS_OPTIONS = [
    {"lr": 0.3, "max_iter": 4, "history_size": 3},
    {"lr": 1, "max_iter": 5, "line_search_fn": "strong_wolfe"},
    {"lr": 30, "max_iter": 6, "max_eval": 9, "line_search_fn": "strong_wolfe"},
]


@pytest.mark.parametrize("options", LBFGS_OPTIONS, ids=repr)
def test_lbfgs(options: dict[str, Any]) -> None:
    """Three calls, the last after a resume from state dictionaries of both frameworks, counters included."""
    reference, optimizer, torch_closure, closure, theirs, ours = pair("LBFGS", **options)
    first = torch_closure().item()
    for call in range(3):
        if call == 2:
            state = copy.deepcopy(optimizer.state_dict())
            reference.load_state_dict(copy.deepcopy(reference.state_dict()))
            optimizer.load_state_dict(state)
        expected, loss = reference.step(torch_closure), optimizer.step(closure)
        assert np.isclose(expected.item(), loss.asnumpy(), rtol=1e-4)
        wanted, got = reference.state[theirs[0]], optimizer.state[ours[0]]
        assert (wanted["func_evals"], wanted["n_iter"]) == (got["func_evals"], got["n_iter"])
        assert len(wanted["old_dirs"]) == len(got["old_dirs"])
    # differences of nearly equal gradients carry the rounding of float32 into the directions
    check(theirs, ours, 1e-3)
    assert expected.item() < 0.5 * first


def test_lbfgs_goes_on_from_a_state_of_torch() -> None:
    reference, optimizer, torch_closure, closure, theirs, ours = pair("LBFGS", **LBFGS_OPTIONS[1])
    reference.step(torch_closure)
    for parameter, value in zip(ours, theirs, strict=True):
        parameter.set_data(ms.Tensor(value.detach().numpy()))
    optimizer.load_state_dict(as_ms(reference.state_dict()))
    reference.step(torch_closure)
    optimizer.step(closure)
    check(theirs, ours, 1e-3)


def as_ms(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return ms.Tensor(value.numpy())
    if isinstance(value, dict):
        return {key: as_ms(item) for key, item in value.items()}
    return [as_ms(item) for item in value] if isinstance(value, list) else value


def test_lbfgs_refuses_as_torch() -> None:
    reference, optimizer, torch_closure, closure, _, _ = pair("LBFGS", line_search_fn="armijo")
    for one, function in ((reference, torch_closure), (optimizer, closure)):
        with pytest.raises(RuntimeError, match="strong_wolfe"):
            one.step(function)
        with pytest.raises(TypeError, match="closure"):
            one.step()
    parameters = [ms.Parameter(ms.Tensor([1.0]), name=f"p{i}") for i in range(2)]
    with pytest.raises(ValueError, match="parameter groups"):
        LBFGS([{"params": [p]} for p in parameters])
    with pytest.raises(TypeError, match="closure"):
        optimizer([ms.Tensor(v) for v in START])


@pytest.mark.parametrize("first", [0.01, 0.5, 1.0, 4.0, 100.0])
def test_lines_as_torch_searches_them(first: float) -> None:
    """The same lengths are tried, on a line with several valleys."""
    from torch.optim.lbfgs import _strong_wolfe

    def curve(t: float) -> tuple[float, float]:
        return float(np.cos(3 * t) + 0.3 * (t - 2) ** 2), float(-3 * np.sin(3 * t) + 0.6 * (t - 2))

    tried: list[list[float]] = [[], []]

    def theirs(x: Any, t: Any, d: Any) -> tuple[float, torch.Tensor]:
        tried[0].append(float(t))
        value, slope = curve(float(t))
        return value, torch.tensor([slope], dtype=torch.float64)

    def ours(t: float) -> tuple[float, float, float]:
        tried[1].append(t)
        value, slope = curve(t)
        return value, slope, slope

    value, slope = curve(0.0)
    direction, gradient = torch.ones(1, dtype=torch.float64), torch.tensor([slope], dtype=torch.float64)
    expected = _strong_wolfe(theirs, None, first, direction, value, gradient, gradient[0])
    found = wolfe.strong_wolfe(ours, first, (value, slope, slope), 1.0, 1e-9, 25)
    assert np.allclose(*tried, rtol=1e-9) and len(tried[0]) == found[3] == expected[3]
    assert np.isclose(found[0], expected[0]) and np.isclose(found[2], float(expected[2]))
