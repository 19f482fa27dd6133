"""Optimizers against torch: ten steps, groups, changing rates, state dictionaries in both directions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import lion_pytorch
import mindspore as ms
import numpy as np
import pytest
import torch

from ms_models.compat import optim, optim_adam, optim_matrices, optim_signs, optim_squares
from ms_models.compat.gradients import clip_grad_norm, clip_grad_norm_

SHAPES = [(5, 4), (4,), (3, 2, 2), ()]

# float32 arithmetic in another order: ten updates stay within a few units in the last place of numbers of size 1
RTOL, ATOL = 1e-6, 2e-6

ADAMW = [
    {"lr": 0.1},
    {"lr": 0.01, "betas": (0.8, 0.95), "eps": 1e-3, "weight_decay": 0.4},
    {"lr": 0.05, "maximize": True},
]
SGD = [
    {"lr": 0.1},
    {"lr": 0.1, "momentum": 0.9, "dampening": 0.3},
    {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.2},
]
KINDS = (
    [("AdamW", options) for options in ADAMW]
    + [("Adam", {"lr": 0.1, "weight_decay": 0.2}), ("Adam", {"lr": 0.02, "betas": (0.5, 0.9)})]
    + [("SGD", options) for options in SGD]
)
FAMILY = [
    ("Adam", {"lr": 0.05, "amsgrad": True}),
    ("NAdam", {"lr": 0.05, "momentum_decay": 0.02}),
    ("NAdam", {"lr": 0.05, "decoupled_weight_decay": True, "maximize": True}),
    ("RAdam", {"lr": 0.05, "betas": (0.8, 0.95)}),
    ("Adamax", {"lr": 0.05}),
    ("RMSprop", {"lr": 0.02, "momentum": 0.8, "centered": True}),
    ("Adagrad", {"lr": 0.1, "lr_decay": 0.1, "initial_accumulator_value": 0.3}),
    ("Adadelta", {"lr": 0.5}),
    ("ASGD", {"lr": 0.1, "lambd": 0.2, "t0": 3}),
    ("Rprop", {"lr": 0.1, "step_sizes": (0.05, 0.3)}),
    ("Adafactor", {"lr": 0.1, "d": 1.2}),
]
MODULES = (optim, optim_adam, optim_squares, optim_signs, optim_matrices)


def values(seed: int) -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(seed)
    return [np.asarray(rng.standard_normal(s), np.float32) for s in SHAPES]


def pair(kind: str, **options: Any) -> tuple[Any, Any, list[torch.nn.Parameter], list[ms.Parameter]]:
    """The same optimizer over the same parameters in both frameworks, in two groups."""
    theirs = [torch.nn.Parameter(torch.tensor(v)) for v in values(0)]
    ours = [ms.Parameter(ms.Tensor(v), name=f"p{i}") for i, v in enumerate(values(0))]
    second = {"lr": options["lr"] / 3, "weight_decay": 0.07}

    def groups(p: list[Any]) -> list[dict[str, Any]]:
        return [{"params": p[::2]}, {"params": p[1::2], **second}]

    return (
        getattr(torch.optim, kind)(groups(theirs), **options),
        next(getattr(m, kind) for m in MODULES if hasattr(m, kind))(groups(ours), **options),
        theirs,
        ours,
    )


def one_step(step: int, theirs: Any, ours: Any, scale: float = 1.0) -> None:
    grads = [np.asarray(g * scale, np.float32) for g in values(100 + step)]
    order = [*range(0, len(SHAPES), 2), *range(1, len(SHAPES), 2)]
    parameters = [p for group in theirs.param_groups for p in group["params"]]
    for parameter, number in zip(parameters, order, strict=True):
        parameter.grad = torch.tensor(grads[number])
    theirs.step()
    ours([ms.Tensor(grads[number]) for number in order])


def close(theirs: list[torch.nn.Parameter], ours: list[ms.Parameter], rtol: float = RTOL, atol: float = ATOL) -> bool:
    pairs = zip(theirs, ours, strict=True)
    return all(np.allclose(t.detach().numpy(), o.asnumpy(), rtol=rtol, atol=atol) for t, o in pairs)


@pytest.mark.parametrize(("kind", "options"), KINDS + FAMILY, ids=lambda v: v if isinstance(v, str) else "-".join(v))
def test_ten_steps(kind: str, options: dict[str, Any]) -> None:
    torch_optimizer, optimizer, theirs, ours = pair(kind, **options)
    for step in range(10):
        for groups in (torch_optimizer.param_groups, optimizer.param_groups):
            for group in groups:
                group["lr"] = options["lr"] * (1 - step / 20)
        one_step(step, torch_optimizer, optimizer, scale=10.0 ** (step % 4 - 2))
        assert close(theirs, ours), step


def test_small_updates_are_as_exact_as_torch() -> None:
    """`1 - beta2` in float32 would make every update of AdamW 5e-6 too large: seen against float64."""
    start, gradient = np.zeros(1000, np.float32), values(3)[0].ravel()[0] * np.ones(1000, np.float32)
    exact = torch.nn.Parameter(torch.tensor(start).double())
    ours = ms.Parameter(ms.Tensor(start), name="p")
    reference = torch.optim.AdamW([exact], lr=1.0, weight_decay=0.0)
    optimizer = optim.AdamW([ours], lr=1.0, weight_decay=0.0)
    for _ in range(3):
        exact.grad = torch.tensor(gradient).double()
        reference.step()
        optimizer([ms.Tensor(gradient)])
    assert np.allclose(exact.detach().numpy(), ours.asnumpy(), rtol=6e-7, atol=0)


def test_a_wrong_decay_is_noticed() -> None:
    torch_optimizer, optimizer, theirs, ours = pair("AdamW", lr=0.1, weight_decay=0.1)
    optimizer.param_groups[0]["weight_decay"] = 0.11
    one_step(0, torch_optimizer, optimizer)
    assert not close(theirs, ours)


@pytest.mark.parametrize(("kind", "options"), KINDS[1:2] + KINDS[-2:] + FAMILY, ids=repr)
def test_state_from_torch_and_back(kind: str, options: dict[str, Any]) -> None:
    torch_optimizer, optimizer, theirs, ours = pair(kind, **options)
    for step in range(3):
        one_step(step, torch_optimizer, optimizer)

    _, fresh, _, copies = pair(kind, **options)
    as_ours = to_ms(torch_optimizer.state_dict())
    fresh.load_state_dict(as_ours)
    for copy, parameter in zip(copies, theirs, strict=True):
        copy.set_data(ms.Tensor(parameter.detach().numpy()))

    other_torch, _, torch_copies, _ = pair(kind, **options)
    other_torch.load_state_dict(to_torch(optimizer.state_dict(), other_torch.state_dict()))
    with torch.no_grad():
        for copy, parameter in zip(torch_copies, ours, strict=True):
            copy.copy_(torch.tensor(parameter.asnumpy()))

    for step in range(3, 6):
        one_step(step, torch_optimizer, fresh)
        one_step(step, other_torch, optimizer)
    # the second moment that MindSpore's kernel keeps is 1e-5 away from torch's, an update half as much
    assert close(theirs, copies, rtol=1e-5, atol=1e-5) and close(torch_copies, ours, rtol=1e-5, atol=1e-5)


def to_ms(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return ms.Tensor(value.numpy())
    if isinstance(value, dict):
        return {key: to_ms(item) for key, item in value.items()}
    return [to_ms(item) for item in value] if isinstance(value, list) else value


def to_torch(value: Any, template: Any) -> Any:
    if isinstance(value, ms.Tensor):
        return torch.tensor(value.asnumpy())
    if isinstance(value, dict):
        return {**(template if isinstance(template, dict) else {}), **{k: to_torch(v, None) for k, v in value.items()}}
    if isinstance(value, list):
        pairs = zip(value, template or [None] * len(value), strict=True)
        return [to_torch(item, part) for item, part in pairs]
    return value


def test_muon() -> None:
    """Newton-Schulz steps in bfloat16: the order of sums shows in the last of 8 bits, a few times over."""
    shapes = [(6, 4), (3, 8)]
    rng = np.random.default_rng(0)
    starts = [rng.standard_normal(s).astype(np.float32) for s in shapes]
    for options in ({"lr": 0.1}, {"lr": 0.1, "nesterov": False, "adjust_lr_fn": "match_rms_adamw", "momentum": 0.5}):
        theirs = [torch.nn.Parameter(torch.tensor(v)) for v in starts]
        ours = [ms.Parameter(ms.Tensor(v), name=f"m{i}") for i, v in enumerate(starts)]
        reference, optimizer = torch.optim.Muon(theirs, **options), optim_matrices.Muon(ours, **options)
        for _ in range(5):
            grads = [rng.standard_normal(s).astype(np.float32) for s in shapes]
            for parameter, gradient in zip(theirs, grads, strict=True):
                parameter.grad = torch.tensor(gradient)
            reference.step()
            optimizer([ms.Tensor(g) for g in grads])
        assert close(theirs, ours, rtol=0, atol=5 * 0.1 * 2 * 2**-6)
        moved = [np.abs(t.detach().numpy() - s).max() for t, s in zip(theirs, starts, strict=True)]
        assert min(moved) > 0.05  # so that the bound says something
        for a, b in zip(reference.state.values(), optimizer.state.values(), strict=True):
            assert np.allclose(a["momentum_buffer"].numpy(), b["momentum_buffer"].asnumpy(), rtol=RTOL, atol=ATOL)


LIONS: list[dict[str, Any]] = [
    {"lr": 0.01},
    {"lr": 0.02, "betas": (0.8, 0.95), "weight_decay": 0.2},
    {"lr": 0.02, "weight_decay": 0.3, "decoupled_weight_decay": True},
]


@pytest.mark.parametrize("options", LIONS, ids=repr)
def test_lion(options: dict[str, Any]) -> None:
    """Twenty steps of the package lion-pytorch, with changing rates and a resume from its state half-way."""

    def groups(p: list[Any]) -> list[dict[str, Any]]:
        return [{"params": p[::2]}, {"params": p[1::2], "weight_decay": 0.07, "betas": (0.5, 0.6)}]

    theirs = [torch.nn.Parameter(torch.tensor(v)) for v in values(0)]
    ours = [ms.Parameter(ms.Tensor(v), name=f"p{i}") for i, v in enumerate(values(0))]
    reference, optimizer = lion_pytorch.Lion(groups(theirs), **options), optim_signs.Lion(groups(ours), **options)
    for step in range(20):
        if step == 10:
            optimizer = optim_signs.Lion(groups(ours), **options)
            optimizer.load_state_dict(to_ms(reference.state_dict()))
        for group in [*reference.param_groups, *optimizer.param_groups]:
            group["lr"] = options["lr"] * (1 - step / 40)
        one_step(step, reference, optimizer)
        assert close(theirs, ours), step
    moved = [np.abs(t.detach().numpy() - s).max() for t, s in zip(theirs, values(0), strict=True)]
    assert min(moved) > options["lr"]  # more than one wrong sign would hide


@pytest.mark.parametrize("wrong", [{"lr": 0.0}, {"betas": (0.9, 1.5)}], ids=repr)
def test_lion_refuses(wrong: dict[str, Any]) -> None:
    with pytest.raises(AssertionError):
        lion_pytorch.Lion([torch.nn.Parameter(torch.ones(1))], **wrong)
    with pytest.raises(ValueError, match="invalid setting"):
        optim_signs.Lion([ms.Parameter(ms.Tensor([1.0]), name="p")], **wrong)


def test_step_calls_the_closure_first() -> None:
    parameter = ms.Parameter(ms.Tensor([1.0]), name="p")

    def closure() -> float:
        parameter.grad = ms.Tensor([2.0])
        return 7.0

    assert optim.SGD([parameter], lr=0.25).step(closure) == 7.0
    assert parameter.asnumpy() == 0.5


def test_an_optimizer_of_the_user() -> None:
    """One that keeps its own state, as torch's documentation shows it."""

    class Counting(optim.Optimizer):
        def __init__(self, params: Any, lr: float) -> None:
            super().__init__(params, {"lr": lr})

        def step(self, closure: Any = None) -> None:
            for group in self.param_groups:
                for p in group["params"]:
                    state = self.state[p]
                    if len(state) == 0:
                        state["step"], state["seen"] = 0, ms.ops.zeros_like(p)
                    state["step"] += 1
                    state["seen"] += p.grad

    parameter = ms.Parameter(ms.Tensor([1.0]), name="p")
    parameter.grad = ms.Tensor([2.0])
    optimizer, other = Counting([parameter], 0.1), Counting([parameter], 0.1)
    optimizer.step()
    other.load_state_dict(optimizer.state_dict())
    other.step()
    assert other.state[parameter]["step"] == 2 and other.state[parameter]["seen"].asnumpy() == 4.0
    assert optimizer.state[parameter]["seen"].asnumpy() == 2.0


def test_own_state_continues_exactly() -> None:
    _, first, _, ours = pair("AdamW", lr=0.1)
    _, second, _, copies = pair("AdamW", lr=0.1)
    grads = [ms.Tensor(g) for g in values(5)]
    order = [0, 2, 1, 3]
    first([grads[i] for i in order])
    second.load_state_dict(first.state_dict())
    for copy, parameter in zip(copies, ours, strict=True):
        copy.set_data(ms.Tensor(parameter.asnumpy()))
    for optimizer in (first, second):
        optimizer([grads[i] for i in order])
    assert all(np.array_equal(a.asnumpy(), b.asnumpy()) for a, b in zip(ours, copies, strict=True))


def test_state_dict_is_a_snapshot() -> None:
    _, optimizer, _, _ = pair("AdamW", lr=0.1)
    grads = [ms.Tensor(g) for g in values(5)]
    optimizer([grads[i] for i in (0, 2, 1, 3)])
    before = optimizer.state_dict()["state"][0]["exp_avg"].asnumpy().copy()
    snapshot = optimizer.state_dict()
    optimizer([grads[i] for i in (0, 2, 1, 3)])
    assert np.array_equal(snapshot["state"][0]["exp_avg"].asnumpy(), before)


@pytest.mark.parametrize("norm_type", [2.0, 1.0, 3.0, float("inf")])
@pytest.mark.parametrize("max_norm", [0.5, 1000.0])
def test_clipping(norm_type: float, max_norm: float) -> None:
    grads = values(1)
    theirs = [torch.nn.Parameter(torch.zeros(s)) for s in SHAPES]
    for parameter, gradient in zip(theirs, grads, strict=True):
        parameter.grad = torch.tensor(gradient)
    wanted = torch.nn.utils.clip_grad_norm_(theirs, max_norm, norm_type)
    clipped, norm = clip_grad_norm([ms.Tensor(g) for g in grads], max_norm, norm_type)
    assert np.isclose(norm.asnumpy(), wanted.numpy(), rtol=1e-6)
    for parameter, gradient in zip(theirs, clipped, strict=True):
        assert parameter.grad is not None
        assert np.allclose(parameter.grad.numpy(), gradient.asnumpy(), rtol=1e-6, atol=1e-8)


def test_clipping_refuses_what_is_not_finite() -> None:
    parameter = ms.Parameter(ms.Tensor([1.0]), name="p")
    parameter.grad = ms.Tensor([float("nan")])
    with pytest.raises(RuntimeError, match="not finite"):
        clip_grad_norm_([parameter], 1.0, error_if_nonfinite=True)


def test_bad_arguments() -> None:
    parameter = ms.Parameter(ms.Tensor([1.0]), name="p")
    wrong: list[Callable[[], object]] = [
        lambda: optim.AdamW([]),
        lambda: optim.AdamW([parameter], lr=-1.0),
        lambda: optim.AdamW([parameter], betas=(1.0, 0.9)),
        lambda: optim_signs.Rprop([parameter], etas=(1.2, 0.5)),
        lambda: optim_matrices.Adafactor([parameter], d=0.5),
        lambda: optim_matrices.Muon([parameter]),
        lambda: optim.AdamW([{"params": [parameter]}, {"params": [parameter]}]),
        lambda: optim.SGD([parameter], nesterov=True),
        lambda: optim.AdamW([parameter])([]),
        lambda: optim.AdamW([parameter]).load_state_dict({"state": {}, "param_groups": []}),
    ]
    for call in wrong:
        with pytest.raises(ValueError, match=r".+"):
            call()
    with pytest.raises(TypeError, match="Parameters"):
        optim.AdamW([ms.Tensor([1.0])])
