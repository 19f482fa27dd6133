"""The learning rate against PyTorch's schedulers, step by step."""

from __future__ import annotations

import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LinearLR, LRScheduler, SequentialLR

from ms_models.train.config import OptimizerConfig, ScheduleConfig
from ms_models.train.schedule import learning_rate

PEAK, STEPS, WARMUP, FLOOR = 0.3, 40, 7, 0.2


def ours(kind: str, warmup: int = WARMUP) -> list[float]:
    schedule = ScheduleConfig(kind=kind, warmup_steps=warmup, min_lr_ratio=FLOOR, decay_fraction=0.25)  # type: ignore[arg-type]
    return [learning_rate(step, STEPS, OptimizerConfig(lr=PEAK), schedule) for step in range(1, STEPS + 1)]


def wsd(epoch: int) -> float:
    """Flat, then 10 of 33 epochs down to the floor."""
    return 1 - (1 - FLOOR) * max(0, epoch - 23) / 10


@pytest.mark.parametrize("kind", ["cosine", "linear", "constant", "wsd"])
def test_warmup_and_decay_equal_pytorch(kind: str) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=PEAK)
    length = STEPS - WARMUP
    after: dict[str, LRScheduler] = {
        "cosine": CosineAnnealingLR(optimizer, T_max=length, eta_min=FLOOR * PEAK),
        "linear": LinearLR(optimizer, 1.0, FLOOR, total_iters=length),
        "constant": LambdaLR(optimizer, lambda epoch: 1.0),
        "wsd": LambdaLR(optimizer, wsd),
    }
    optimizer.param_groups[0]["lr"] = PEAK  # building the schedulers above moved it
    warmup = LinearLR(optimizer, 1 / WARMUP, 1.0, total_iters=WARMUP - 1)
    scheduler = SequentialLR(optimizer, [warmup, after[kind]], milestones=[WARMUP - 1])
    expected = []
    for _ in range(STEPS):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    # PyTorch's closed and recursive forms differ among themselves by a few units in the last place.
    assert ours(kind) == pytest.approx(expected, rel=1e-12)


def test_without_warmup_the_peak_is_left_at_once_and_the_floor_is_reached() -> None:
    rates = ours("cosine", warmup=0)
    assert PEAK > rates[0] > rates[1]
    assert rates[-1] == pytest.approx(PEAK * FLOOR)
