"""Which settings a sweep tries, and what it makes of runs; one real trial is in `test_sweep_runs`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from mappings.errors import UserError
from ms_models.train import sweep as body
from ms_models.train.config import load
from tests.ms_models.train.run_helpers import write_config, write_data, write_model


@pytest.fixture
def config(tmp_path: Path) -> Path:
    model, data = write_model(tmp_path / "model"), write_data(tmp_path / "data")
    return write_config(tmp_path / "run.yaml", model, data, tmp_path / "run")


def test_the_global_batch_stays(config: Path) -> None:
    trials = body.settings(load(config), None, None)
    assert [(t.micro_batch_size, t.accumulation, t.seq_length) for t in trials] == [
        (1, 8, None), (2, 4, None), (4, 2, None), (8, 1, None),
    ]  # fmt: skip
    with pytest.raises(UserError, match="micro-batch sizes 3 do not divide the 8 sequences"):
        body.settings(load(config), [3, 2], None)
    with pytest.raises(UserError, match=r"need data\.text"):
        body.settings(load(config), None, [128])
    text = load(config, ["data={text: [stdlib], seq_length: 12}"])
    assert [(t.micro_batch_size, t.seq_length) for t in body.settings(text, [8], [16, 8])] == [(8, 8), (8, 16)]


def test_a_trial_that_fails_is_a_line_of_the_table(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[dict[str, Any]] = []

    def launch(path: Path, overrides: Sequence[str], *, stop_after: int, echo: Any) -> int:
        chosen = load(path, overrides)
        started.append({"micro": chosen.train.micro_batch_size, "global": chosen.global_batch, "steps": stop_after})
        size, run = chosen.train.micro_batch_size, Path(chosen.output.directory)
        if size == 4:
            raise UserError("layout: does not fit")
        (run / "step_00000003").mkdir(parents=True)
        if size == 8:
            echo("failed: rank 0: died of SIGKILL; every process was ended")
            return 1
        records = [
            {"step": n, "tokens_per_s": 10.0 * size * n, "step_time_s": 9.0 / n, "memory_peak_gb": 1.0 + size}
            for n in (1, 2, 3)
        ]
        (run / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records))
        return 0

    monkeypatch.setattr(body.starting, "launch", launch)
    out = tmp_path / "out"
    trials = body.sweep(config, out, micro=[2, 4, 8], steps=3)
    assert [one["global"] for one in started] == [8, 8, 8] and {one["steps"] for one in started} == {3}
    assert (trials[0].tokens_per_s, trials[0].step_s, trials[0].first_step_s) == (50.0, 3.75, 9.0)
    lines = body.table(trials)
    assert lines[2] == "| 12 | 2 | 4 | 50 | 3.750 | 9.0 | 3.00 | fastest |"
    assert lines[3].endswith("| layout: does not fit |") and "died of SIGKILL" in lines[4]
    assert not list(out.rglob("step_*")), "checkpoints of trials are of no use"
    assert [one["micro_batch_size"] for one in json.loads((out / body.RESULT).read_text())] == [2, 4, 8]
    with pytest.raises(UserError, match="is not empty"):
        body.sweep(config, out, steps=3)
    with pytest.raises(UserError, match="--steps must be from 2 to the 6 of the run"):
        body.sweep(config, tmp_path / "other", steps=7)
    monkeypatch.setattr(body.starting, "launch", lambda *_, **__: 130)
    with pytest.raises(UserError, match="interrupted during"):
        body.sweep(config, tmp_path / "third", micro=[2], steps=3)


@pytest.mark.slow
def test_sweep_runs(config: Path, tmp_path: Path) -> None:
    trials = body.sweep(config, tmp_path / "out", ["train.jit=false"], micro=[2, 8], steps=3)
    assert [trial.failure for trial in trials] == [None, None]
    assert all(trial.tokens_per_s and trial.memory_peak_gb for trial in trials)
