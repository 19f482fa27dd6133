"""What is derived from steps: smoothed loss, parts of a step, what a resumed run goes on with."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ms_models.parallel.mesh import Mesh
from ms_models.train.config import load
from ms_models.train.services.meter import RANKS, Meter
from ms_models.train.services.phase_times import PhaseTimes
from ms_models.train.services.smoothing import Smoothed
from tests.ms_models.train.run_helpers import write_config


@pytest.mark.parametrize("past", [0.0, 0.5, 0.95])
def test_the_average_is_that_of_exponential_weights(past: float) -> None:
    values = np.random.default_rng(0).normal(3, 1, 40)
    smoothed = Smoothed(past)
    before = math.nan
    squares: list[float] = []
    for count, value in enumerate(values, 1):
        smoothed.add(float(value))
        weights = past ** np.arange(count - 1, -1, -1)
        expected = float((weights * values[:count]).sum() / weights.sum())
        assert smoothed.mean == pytest.approx(expected, rel=1e-12)
        if count > 1:
            squares.append((value - before) ** 2)
            recent = past ** np.arange(count - 2, -1, -1)
            assert smoothed.spread == pytest.approx(math.sqrt((recent * squares).sum() / recent.sum()), rel=1e-12)
        before = expected
    assert Smoothed.over(past, [None, *values.tolist(), None]).mean == smoothed.mean
    assert math.isnan(Smoothed(past).mean) and not Smoothed(past).known


def test_time_counts_for_the_part_that_ran() -> None:
    now = [0.0]
    waited: list[float] = []

    def wait() -> None:
        now[0] += 0.25  # the device finishes what the part has started
        waited.append(now[0])

    times = PhaseTimes(wait, lambda: now[0])
    for _ in range(2):
        for phase, seconds in (("data", 1.0), ("compute", 4.0), ("update", 2.0)):
            times.enter(phase)
            now[0] += seconds
        taken = times.take()
        assert {name: taken[name] for name in ("data", "compute", "update")} == {
            "data": 1.25, "compute": 4.25, "update": 2.25
        }  # fmt: skip
        now[0] += 100.0  # an evaluation, which is no part of a step
        times.enter("report")
    assert waited == sorted(waited)


def record(step: int, loss: float | None, outcome: str = "updated") -> dict[str, Any]:
    return {"step": step, "loss": loss, "outcome": outcome, "tokens": 100 * step, "step_time_s": 0.5}


def config_of(folder: Path, **metrics: object) -> Any:
    folder.mkdir(parents=True, exist_ok=True)
    path = write_config(
        folder / "run.yaml", folder / "model", folder / "data", folder, metrics=metrics, train={"steps": 30}
    )
    return load(path)


def test_a_resumed_run_goes_on_with_the_same_average(tmp_path: Path) -> None:
    losses = [5.0, 4.0, 9.0, 3.5, None, 3.0, 2.5, 2.4]
    outcomes = ["updated", "updated", "spike", "updated", "non_finite", "updated", "updated", "updated"]
    steps = list(zip(range(1, 9), losses, outcomes, strict=True))
    config = config_of(tmp_path, smoothing=0.5, target_loss=3.3)
    whole = Meter(config, Mesh.single(), None, 0)
    expected = [whole.complete(record(*step)) for step in steps]
    assert expected[2]["loss_ema"] == expected[1]["loss_ema"], "a spike that was left out does not count"
    assert expected[4]["loss_ema"] == expected[3]["loss_ema"]
    # Reached once, at the first step whose average is low enough.
    reached = [one["step"] for one in expected if "target_loss" in one]
    assert len(reached) == 1 and expected[reached[0] - 1]["loss_ema"] <= 3.3 < expected[reached[0] - 2]["loss_ema"]

    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in expected[:7]))
    resumed = Meter(config, Mesh.single(), None, 4)
    measured = {"memory_gb", "memory_peak_gb"}
    for step, one in zip(steps[4:], expected[4:], strict=True):
        found = resumed.complete(record(*step))
        assert {k: v for k, v in found.items() if k not in measured} == {
            k: v for k, v in one.items() if k not in measured
        }


def test_utilisation_is_of_the_stated_peak_and_averages_by_rank_leave_out_the_first_step(tmp_path: Path) -> None:
    meter = Meter(config_of(tmp_path, peak_tflops=2.0), Mesh.single(), 5e11, 0)
    found = [meter.complete({**record(step, 3.0), "step_time_s": 99.0 if step == 1 else 0.5}) for step in range(1, 31)]
    assert found[-1]["tflops"] == pytest.approx(1.0) and found[-1]["mfu"] == pytest.approx(0.5)
    assert 0 < found[-1]["memory_gb"] <= found[-1]["memory_peak_gb"] < 100
    ranks = json.loads((tmp_path / RANKS).read_text())
    assert ranks["step"] == 30 and ranks["steps"] == 29
    assert ranks["ranks"][0]["compute_s"] == pytest.approx(0.5)
