"""Event files are read back by TensorBoard itself; a resumed run takes the place of later steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from ms_models.train.services.tensorboard import TensorBoard

accumulators = pytest.importorskip(
    "tensorboard.backend.event_processing.event_accumulator", reason="the extra viz (tensorboard) is not installed"
)


def points(directory: Path, tag: str) -> list[tuple[int, float]]:
    accumulator = accumulators.EventAccumulator(str(directory), size_guidance={accumulators.SCALARS: 0})
    accumulator.Reload()
    return [(event.step, round(event.value, 4)) for event in accumulator.Scalars(tag)]


def test_a_resumed_run_replaces_later_steps(tmp_path: Path) -> None:
    first = TensorBoard(tmp_path, resume_step=0)
    for step in range(1, 7):
        first.after_step({"step": step, "loss": 10.0 - step, "outcome": "updated", "slowest_rank": 1})
    first.after_step({"step": 7, "loss": None})
    first.after_evaluation({"step": 6, "eval_loss": 4.5, "samples": [{"prompt": "a", "text": "b"}]})
    first.close(None)
    second = TensorBoard(tmp_path, resume_step=4)
    for step in (5, 6):
        second.after_step({"step": step, "loss": 100.0 + step})
    second.close(RuntimeError())
    assert points(tmp_path, "train/loss") == [(1, 9.0), (2, 8.0), (3, 7.0), (4, 6.0), (5, 105.0), (6, 106.0)]
    assert points(tmp_path, "train/slowest_rank")[-1] == (4, 1.0)
    assert points(tmp_path, "evaluation/eval_loss") == [], "of step 6, which comes again"
