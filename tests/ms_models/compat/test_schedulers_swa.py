"""Weight averaging against torch: rates, averages of parameters and buffers, batch statistics."""

from __future__ import annotations

import warnings
from typing import Any

import mindspore as ms
import numpy as np
import pytest
import torch
from torch.optim import swa_utils

from ms_models.compat import averaging, optim
from ms_models.compat.batch_layers import BatchNorm1d
from ms_models.compat.containers import Sequential
from ms_models.compat.layers import Linear
from ms_models.compat.schedulers_swa import SWALR


@pytest.mark.parametrize("options", [{}, {"anneal_epochs": 4, "anneal_strategy": "linear"}, {"anneal_epochs": 0}])
def test_rates(options: dict[str, Any]) -> None:
    """Twenty steps, a rate written at one of them, resumed in the middle."""
    theirs = torch.optim.SGD([{"params": [torch.nn.Parameter(torch.ones(1))], "lr": rate} for rate in (0.1, 0.03)])
    ours = optim.SGD([{"params": [ms.Parameter(ms.Tensor([1.0]), name=str(rate))], "lr": rate} for rate in (0.1, 0.03)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        reference, schedule = swa_utils.SWALR(theirs, [0.5, 0.01], **options), SWALR(ours, [0.5, 0.01], **options)
        for step in range(20):
            if step == 3:
                theirs.param_groups[0]["lr"] *= 2
                ours.param_groups[0]["lr"] *= 2
            if step == 6:
                state, rates = schedule.state_dict(), [group["lr"] for group in ours.param_groups]
                schedule = SWALR(ours, [0.5, 0.01], **options)
                schedule.load_state_dict(state)
                for group, rate in zip(ours.param_groups, rates, strict=True):
                    group["lr"] = rate
            reference.step()
            schedule.step()
            assert reference.get_last_lr() == schedule.get_last_lr()
            assert [g["lr"] for g in theirs.param_groups] == [g["lr"] for g in ours.param_groups]


def models() -> tuple[Any, Any]:
    torch.manual_seed(0)
    theirs = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))
    ours = Sequential(Linear(3, 4), BatchNorm1d(4), Linear(4, 2))
    take(ours, theirs)
    return theirs, ours


def take(ours: Any, theirs: Any) -> None:
    ours.load_state_dict({name: ms.Tensor(value.numpy().copy()) for name, value in theirs.state_dict().items()})


def close(theirs: Any, ours: Any) -> bool:
    state = ours.state_dict()
    pairs = [(value.numpy(), state[name].asnumpy()) for name, value in theirs.state_dict().items()]
    return set(theirs.state_dict()) == set(state) and all(np.allclose(a, b, rtol=1e-5, atol=1e-6) for a, b in pairs)


KINDS: list[Any] = [
    lambda m: {},
    lambda m: {"avg_fn": m.get_ema_avg_fn(0.8)},
    lambda m: {"avg_fn": lambda mean, value, number: 0.3 * mean + 0.7 * value},
    lambda m: {"multi_avg_fn": m.get_ema_multi_avg_fn(0.7)},
    lambda m: {"multi_avg_fn": m.get_swa_multi_avg_fn()},
    lambda m: {"use_buffers": True},
    lambda m: {"use_buffers": True, "avg_fn": m.get_ema_avg_fn(0.6)},
]


@pytest.mark.parametrize("number", range(len(KINDS)))
def test_averages(number: int) -> None:
    theirs, ours = models()
    reference, averaged = (
        swa_utils.AveragedModel(theirs, **KINDS[number](swa_utils)),
        averaging.AveragedModel(ours, **KINDS[number](averaging)),
    )
    rng = np.random.default_rng(0)
    for step in range(6):
        with torch.no_grad():
            for parameter in theirs.parameters():
                parameter.add_(torch.tensor(rng.standard_normal(parameter.shape).astype(np.float32)))
            theirs[1].running_mean.add_(1.0)
        take(ours, theirs)
        reference.update_parameters(theirs)
        averaged.update_parameters(ours)
        assert close(reference, averaged), step
        assert close(theirs, ours), "the model itself stays as it was"
    x = rng.standard_normal((5, 3)).astype(np.float32)
    batches = [x, x * 2 + 1, x - 3]
    for model, tensor, update in (
        (reference, torch.tensor, swa_utils.update_bn),
        (averaged, ms.Tensor, averaging.update_bn),
    ):
        update([(tensor(b), 0) for b in batches], model)
        model.eval()
    assert close(reference, averaged)
    assert np.allclose(reference(torch.tensor(x)).detach().numpy(), averaged(ms.Tensor(x)).asnumpy(), atol=1e-5)
    assert averaged.module[1].momentum == 0.1


def test_refusals() -> None:
    theirs, ours = models()
    for module, model in ((swa_utils, theirs), (averaging, ours)):
        with pytest.raises(ValueError, match="decay"):
            module.get_ema_multi_avg_fn(1.5)
        with pytest.raises(AssertionError, match="Only one"):
            module.AveragedModel(model, avg_fn=module.get_swa_avg_fn(), multi_avg_fn=module.get_swa_multi_avg_fn())
    with pytest.raises(ValueError, match="use_buffers"):
        averaging.AveragedModel(ours, multi_avg_fn=averaging.get_swa_multi_avg_fn(), use_buffers=True)
