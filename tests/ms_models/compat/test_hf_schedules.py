"""The schedules of ms_models/compat against those of transformers: every rate of a training."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import transformers
from mindspore import Parameter, Tensor
from transformers import optimization

from ms_models.compat import hf_schedules
from ms_models.compat.optim import SGD

STEPS, WARMUP = 23, 5
NAMED: list[tuple[str, dict[str, Any]]] = [
    ("linear", {}),
    ("cosine", {"num_cycles": 0.7}),
    ("cosine_with_restarts", {"num_cycles": 3}),
    ("polynomial", {"lr_end": 1e-3, "power": 2.0}),
    ("constant", {}),
    ("constant_with_warmup", {}),
    ("inverse_sqrt", {"timescale": 7}),
    ("cosine_with_min_lr", {"min_lr": 0.02}),
    ("cosine_with_min_lr", {"min_lr_rate": 0.3}),
    ("cosine_warmup_with_min_lr", {"min_lr_rate": 0.1}),
    ("cosine_warmup_with_min_lr", {"min_lr_rate": 0.1, "warmup_lr_rate": 0.2}),
    ("warmup_stable_decay", {"num_decay_steps": 6, "decay_type": "1-sqrt", "min_lr_ratio": 0.1}),
    ("warmup_stable_decay", {"num_decay_steps": 6, "num_stable_steps": 4, "warmup_type": "1-sqrt"}),
    ("warmup_stable_decay", {"num_decay_steps": 6, "warmup_type": "cosine", "decay_type": "linear"}),
]


def rates(library: Any, optimizer: Any, name: str, settings: dict[str, Any], warmup: int = WARMUP) -> list[float]:
    schedule = library.get_scheduler(name, optimizer, warmup, STEPS, scheduler_specific_kwargs=settings)
    found = []
    for _ in range(STEPS + 3):
        found.append(schedule.get_last_lr()[0])
        optimizer.step()
        schedule.step()
    return found


def optimizers() -> tuple[Any, Any]:
    return torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1), SGD([Parameter(Tensor([0.0]))], lr=0.1)


@pytest.mark.parametrize(("name", "settings"), NAMED, ids=str)
@pytest.mark.parametrize("warmup", [WARMUP, 0])
def test_rates(name: str, settings: dict[str, Any], warmup: int) -> None:
    theirs, ours = optimizers()
    expected = rates(optimization, theirs, name, settings, warmup)
    found = rates(hf_schedules, ours, name, settings, warmup)
    np.testing.assert_allclose(found, expected, rtol=1e-12)  # the same arithmetic in Python's floats
    assert len(set(np.round(found, 6))) > 1 or name.startswith("constant")


def test_another_warmup_is_noticed() -> None:
    theirs, ours = optimizers()
    expected = rates(optimization, theirs, "linear", {})
    assert not np.allclose(rates(hf_schedules, ours, "linear", {}, WARMUP + 1), expected)


def test_the_functions_have_the_names_and_arguments_of_transformers() -> None:
    names = [name for name in dir(transformers) if name.startswith("get_") and "schedule" in name]
    known = [name for name in names if hasattr(hf_schedules, name)]
    assert len(known) >= 11
    assert set(names) - set(known) <= {"get_adafactor_schedule", "get_greedy_schedule"}
    for name in known:
        theirs, ours = (getattr(library, name).__code__ for library in (optimization, hf_schedules))
        assert theirs.co_varnames[: theirs.co_argcount] == ours.co_varnames[: ours.co_argcount], name


def test_unknown_names_and_missing_lengths_are_refused() -> None:
    _, ours = optimizers()
    with pytest.raises(ValueError, match="greedy is not a valid SchedulerType"):
        hf_schedules.get_scheduler("greedy", ours)
    with pytest.raises(ValueError, match="num_training_steps"):
        hf_schedules.get_scheduler("linear", ours, 3)
    with pytest.raises(ValueError, match="num_warmup_steps"):
        hf_schedules.get_scheduler("cosine", ours)
