"""Schedules against torch, to the last bit: twenty-four steps, two groups, rates written in between, states resumed."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import mindspore as ms
import pytest
import torch

from ms_models.compat import optim, schedulers, schedulers_combined, schedulers_cycles, schedulers_plateau

MODULES = (schedulers, schedulers_cycles, schedulers_combined, schedulers_plateau)
STEPS = 24


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, about schedules stepped without an optimizer's step
        yield


class Theirs:
    """The names of torch."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.optim.lr_scheduler, name)

    def optimizer(self, kind: str = "SGD") -> Any:
        return getattr(torch.optim, kind)(groups([torch.nn.Parameter(torch.ones(2)) for _ in range(2)]))


class Ours:
    """The same names in compat."""

    def __getattr__(self, name: str) -> Any:
        return next(getattr(module, name) for module in MODULES if hasattr(module, name))

    def optimizer(self, kind: str = "SGD") -> Any:
        return getattr(optim, kind)(groups([ms.Parameter(ms.Tensor([1.0]), name=f"p{i}") for i in range(2)]))


def groups(parameters: list[Any]) -> list[dict[str, Any]]:
    return [{"params": [parameter], "lr": rate} for parameter, rate in zip(parameters, (0.1, 0.03), strict=True)]


class Falling:
    """A function with a state."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, step: int) -> float:
        self.calls += 1
        return 1.0 / (step + self.calls)


Make = Callable[[Any, Any], Any]
SCHEDULES: dict[str, Make] = {
    "lambda": lambda f, o: f.LambdaLR(o, [lambda step: 0.9**step, lambda step: step / 10]),
    "lambda object": lambda f, o: f.LambdaLR(o, Falling()),
    "multiplicative": lambda f, o: f.MultiplicativeLR(o, lambda step: 1 - step / 100),
    "step": lambda f, o: f.StepLR(o, 5, gamma=0.3),
    "milestones": lambda f, o: f.MultiStepLR(o, [9, 4, 4, 15], gamma=0.3),
    "exponential": lambda f, o: f.ExponentialLR(o, 0.93),
    "constant": lambda f, o: f.ConstantLR(o, 0.3, total_iters=7),
    "linear": lambda f, o: f.LinearLR(o, 0.2, 0.9, total_iters=9),
    "polynomial": lambda f, o: f.PolynomialLR(o, 17, power=1.7),
    "cosine": lambda f, o: f.CosineAnnealingLR(o, 7, eta_min=0.001),
    "restarts": lambda f, o: f.CosineAnnealingWarmRestarts(o, 3, 2, 0.002),
    "triangles": lambda f, o: f.CyclicLR(o, 0.01, [0.2, 0.4], 3, 4),
    "triangles2": lambda f, o: f.CyclicLR(o, [0.01, 0.02], 0.2, 4, mode="triangular2", base_momentum=[0.5, 0.6]),
    "exponential range": lambda f, o: f.CyclicLR(o, 0.01, 0.2, 4, mode="exp_range", gamma=0.97),
    "own scale": lambda f, o: f.CyclicLR(o, 0.01, 0.2, 4, scale_fn=lambda x: 0.9**x, scale_mode="iterations"),
    "scale object": lambda f, o: f.CyclicLR(o, 0.01, 0.2, 4, scale_fn=Falling(), cycle_momentum=False),
    "one cycle": lambda f, o: f.OneCycleLR(o, [0.3, 0.2], total_steps=30),
    "one cycle in three": lambda f, o: f.OneCycleLR(
        o, 0.3, epochs=5, steps_per_epoch=6, pct_start=0.4, anneal_strategy="linear", three_phase=True
    ),
    "warm-up and cosine": lambda f, o: f.SequentialLR(
        o, [f.LinearLR(o, 0.1, total_iters=4), f.CosineAnnealingLR(o, 14), f.ConstantLR(o, 0.5)], [4, 18]
    ),
    "chained in a sequence": lambda f, o: f.SequentialLR(
        o, [f.ChainedScheduler([f.ConstantLR(o, 0.1, 3), f.ExponentialLR(o, 0.9)]), f.StepLR(o, 3)], [8]
    ),
    "sequences in a sequence": lambda f, o: f.SequentialLR(
        o, [f.SequentialLR(o, [f.LinearLR(o), f.ExponentialLR(o, 0.9)], [3]), f.PolynomialLR(o, 9)], [10]
    ),
    "restarts in a sequence": lambda f, o: f.SequentialLR(
        o, [f.ExponentialLR(o, 0.9), f.CosineAnnealingWarmRestarts(o, 4)], [5]
    ),
    "chained": lambda f, o: f.ChainedScheduler(
        [f.LinearLR(o, 0.1, total_iters=6), f.CosineAnnealingLR(o, 9), f.StepLR(o, 4, 0.7)], o
    ),
}


def settings(optimizer: Any) -> list[tuple[Any, Any, Any]]:
    return [(group["lr"], group.get("momentum"), group.get("betas")) for group in optimizer.param_groups]


def run(frame: Any, make: Make, kind: str, written: bool) -> list[Any]:
    """Settings after each step; half-way, everything is made anew from the state dictionaries."""
    optimizer = frame.optimizer(kind)
    schedule = make(frame, optimizer)
    seen: list[Any] = [(settings(optimizer), schedule.get_last_lr())]
    for step in range(STEPS):
        if step == STEPS // 2 + 1:
            states = copy.deepcopy((optimizer.state_dict(), schedule.state_dict()))
            optimizer = frame.optimizer(kind)
            schedule = make(frame, optimizer)
            optimizer.load_state_dict(states[0])
            schedule.load_state_dict(states[1])
        if written and step % 5 == 3:
            optimizer.param_groups[step % 2]["lr"] *= 1.5
        schedule.step()
        seen.append((settings(optimizer), schedule.get_last_lr()))
    return seen


@pytest.mark.parametrize("written", [False, True])
@pytest.mark.parametrize("kind", ["SGD", "AdamW"])
@pytest.mark.parametrize("name", SCHEDULES)
def test_as_torch(name: str, kind: str, written: bool) -> None:
    expected = run(Theirs(), SCHEDULES[name], kind, written)
    assert len({str(rates) for rates, _ in expected}) > 1
    assert run(Ours(), SCHEDULES[name], kind, written) == expected


def test_a_written_rate_shows() -> None:
    """The control: a schedule that did not start from the rate in force would not see it."""
    plain, written = (run(Ours(), SCHEDULES["cosine"], "SGD", w) for w in (False, True))
    assert plain[3] == written[3] and plain[4:] != written[4:]


@pytest.mark.parametrize("name", SCHEDULES)
def test_torchs_state_continues(name: str) -> None:
    """A state that torch wrote goes on in compat, and the other way round."""
    make = SCHEDULES[name]
    for source, target in ((Theirs(), Ours()), (Ours(), Theirs())):
        pair = [source.optimizer(), target.optimizer()]
        first = make(source, pair[0])
        for _ in range(6):
            first.step()
        second = make(target, pair[1])
        for old, new in zip(pair[0].param_groups, pair[1].param_groups, strict=True):
            new.update({key: value for key, value in old.items() if key != "params"})
        second.load_state_dict(copy.deepcopy(first.state_dict()))
        for _ in range(8):
            first.step()
            second.step()
            assert settings(pair[0]) == settings(pair[1]) and first.get_last_lr() == second.get_last_lr()


JUMPING = [
    "lambda", "step", "milestones", "exponential", "constant", "linear", "polynomial", "cosine", "restarts", "triangles"
]  # fmt: skip


@pytest.mark.parametrize("name", JUMPING)
def test_steps_to_an_epoch(name: str) -> None:
    found = []
    for frame in (Theirs(), Ours()):
        optimizer = frame.optimizer()
        schedule = SCHEDULES[name](frame, optimizer)
        found.append([])
        for epoch in (3, 11, 2, None, 20, None):
            schedule.step(epoch)
            found[-1].append(settings(optimizer))
    assert found[0] == found[1]


@pytest.mark.parametrize("name", JUMPING)
def test_starts_in_the_middle(name: str) -> None:
    """`last_epoch`, for optimizers that know their first rates."""
    kinds = {"cosine": "CosineAnnealingLR", "restarts": "CosineAnnealingWarmRestarts", "triangles": "CyclicLR"}
    arguments = {"cosine": (7,), "restarts": (3, 2), "triangles": (0.01, 0.2, 3)}
    kinds |= {"lambda": "LambdaLR", "step": "StepLR", "milestones": "MultiStepLR", "exponential": "ExponentialLR"}
    arguments |= {"lambda": (lambda step: 0.9**step,), "step": (3,), "milestones": ([2, 9],), "exponential": (0.9,)}  # type: ignore[dict-item]
    kinds |= {"constant": "ConstantLR", "linear": "LinearLR", "polynomial": "PolynomialLR"}
    found: list[list[Any]] = []
    for frame in (Theirs(), Ours()):
        optimizer = frame.optimizer()
        with pytest.raises(KeyError, match="initial_lr"):
            getattr(frame, kinds[name])(optimizer, *arguments.get(name, ()), last_epoch=4, **missing(name))
        for group in optimizer.param_groups:
            group["initial_lr"] = 0.2
        schedule = getattr(frame, kinds[name])(optimizer, *arguments.get(name, ()), last_epoch=4, **missing(name))
        found.append([settings(optimizer)])
        for _ in range(6):
            schedule.step()
            found[-1].append(settings(optimizer))
    assert found[0] == found[1]


def missing(name: str) -> dict[str, Any]:
    return {"cycle_momentum": False} if name == "triangles" else {}


METRICS = [1.0, 0.9, 0.9, 0.91, 0.9, 0.2, 0.3, 0.19999, 0.3, 0.3, 0.3, 0.3, 0.1, 0.3, 0.3, 0.3, 0.3, 0.3, 0.3, 0.3, 0.3]
PLATEAUS = [
    {"patience": 1},
    {"factor": 0.5, "patience": 0, "cooldown": 2, "min_lr": [0.01, 0.02]},
    {"mode": "max", "patience": 2, "threshold": 0.3},
    {"mode": "max", "patience": 1, "threshold": 0.05, "threshold_mode": "abs"},
    {"patience": 1, "threshold": 0.05, "threshold_mode": "abs", "eps": 0.01},
]


@pytest.mark.parametrize("options", PLATEAUS, ids=repr)
def test_plateaus(options: dict[str, Any]) -> None:
    found: list[list[Any]] = []
    for frame, tensor in ((Theirs(), torch.tensor), (Ours(), ms.Tensor)):
        optimizer = frame.optimizer()
        schedule = frame.ReduceLROnPlateau(optimizer, **options)
        found.append([])
        for number, metric in enumerate(METRICS):
            if number == 11:
                states = copy.deepcopy((optimizer.state_dict(), schedule.state_dict()))
                optimizer = frame.optimizer()
                schedule = frame.ReduceLROnPlateau(optimizer)
                optimizer.load_state_dict(states[0])
                schedule.load_state_dict(states[1])
            schedule.step(tensor(metric) if number % 2 else metric)
            state = (schedule.best, schedule.num_bad_epochs, schedule.in_cooldown, schedule.last_epoch)
            found[-1].append((settings(optimizer), schedule.get_last_lr(), state))
    assert found[0] == found[1]
    assert len({str(settings) for settings, _, _ in found[0]}) > 1


def test_a_group_that_came_later() -> None:
    for frame in (Theirs(), Ours()):
        optimizer = frame.optimizer()
        schedule = frame.ReduceLROnPlateau(optimizer, patience=0, min_lr=[0.0, 0.0])
        optimizer.param_groups.append(dict(optimizer.param_groups[0]))
        schedule.step(1.0)
        with pytest.raises(RuntimeError, match="min_lrs"):
            schedule.step(1.0)


WRONG: list[tuple[type[Exception], Make]] = [
    (ValueError, lambda f, o: f.LambdaLR(o, [lambda step: 1.0])),
    (TypeError, lambda f, o: f.MultiplicativeLR(o, 0.5)),
    (ValueError, lambda f, o: f.ConstantLR(o, 1.5)),
    (ValueError, lambda f, o: f.LinearLR(o, 0.0)),
    (ValueError, lambda f, o: f.LinearLR(o, end_factor=1.1)),
    (ValueError, lambda f, o: f.CosineAnnealingWarmRestarts(o, 0)),
    (ValueError, lambda f, o: f.CosineAnnealingWarmRestarts(o, 3).step(-1)),
    (ValueError, lambda f, o: f.CyclicLR(o, 0.1, 0.2, mode="square")),
    (ValueError, lambda f, o: f.CyclicLR(o, [0.1], 0.2)),
    (ValueError, lambda f, o: f.OneCycleLR(o, 0.1)),
    (ValueError, lambda f, o: f.OneCycleLR(o, 0.1, epochs=2.5, steps_per_epoch=2)),
    (ValueError, lambda f, o: f.OneCycleLR(o, 0.1, total_steps=4, pct_start=2.0)),
    (ValueError, lambda f, o: f.OneCycleLR(o, 0.1, total_steps=4, anneal_strategy="step")),
    (ValueError, lambda f, o: [s := f.OneCycleLR(o, 0.1, total_steps=4), *[s.step() for _ in range(5)]]),
    (ValueError, lambda f, o: f.SequentialLR(o, [f.StepLR(o, 3)], [4])),
    (ValueError, lambda f, o: f.SequentialLR(o, [], [])),
    (ValueError, lambda f, o: f.SequentialLR(o, [f.StepLR(f.optimizer(), 3)], [])),
    (ValueError, lambda f, o: f.ChainedScheduler([f.ReduceLROnPlateau(o)])),
    (TypeError, lambda f, o: f.ChainedScheduler([f.StepLR(o, 2)], o).step(3)),
    (TypeError, lambda f, o: f.SequentialLR(o, [f.StepLR(o, 2)], []).step(3)),
    (ValueError, lambda f, o: f.ReduceLROnPlateau(o, factor=1.0)),
    (ValueError, lambda f, o: f.ReduceLROnPlateau(o, "less")),
    (ValueError, lambda f, o: f.ReduceLROnPlateau(o, threshold_mode="none")),
    (ValueError, lambda f, o: f.ReduceLROnPlateau(o, min_lr=[0.1])),
    (TypeError, lambda f, o: f.StepLR(object(), 3)),
    (TypeError, lambda f, o: f.ReduceLROnPlateau([o])),
]


@pytest.mark.parametrize(("error", "make"), WRONG)
def test_refused_as_in_torch(error: type[Exception], make: Make) -> None:
    for frame in (Theirs(), Ours()):
        with pytest.raises(error):
            make(frame, frame.optimizer())


def test_momentum_needs_an_optimizer_with_one() -> None:
    from ms_models.compat import optim_squares

    theirs = torch.optim.Adagrad([torch.nn.Parameter(torch.ones(2))])
    ours = optim_squares.Adagrad([ms.Parameter(ms.Tensor([1.0]), name="p")])
    for frame, optimizer in ((Theirs(), theirs), (Ours(), ours)):
        with pytest.raises(ValueError, match="momentum"):
            frame.OneCycleLR(optimizer, 0.1, total_steps=4)
        with pytest.raises(ValueError, match="momentum"):
            frame.CyclicLR(optimizer, 0.1, 0.2)
