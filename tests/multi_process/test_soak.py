"""A long run with accidents ends with the weights of the same run without them, bit for bit.

`make test-soak`. What belongs to the data happens in both runs: one batch gives NaN on one rank, and its step is left
out. What is an accident happens in one of them, once each: a rank is killed, another step gives NaN though its batch is
sound (a flipped bit) and is left out, a rank meets a defect before the next checkpoint, so that this step is done again
and right, and a rank hangs.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from soak_worker import VARIABLE

from ms_models.train.launch import starting as launching
from ms_models.train.services.metrics_file import read_metrics
from tests.ms_models.train.run_helpers import write_config, write_data, write_model

pytestmark = [pytest.mark.multi_process, pytest.mark.soak, pytest.mark.timeout(3600)]

STEPS = int(os.environ.get("MSMIGRATE_SOAK_STEPS", "2000"))
EVERY = STEPS // 20
STALL_S = 20.0
DATA = {"nan batch": STEPS // 4}
ACCIDENTS = {
    "kill": STEPS * 3 // 20 + 7, "bit flip": STEPS // 2 + EVERY // 4, "defect": STEPS // 2 + EVERY // 2,
    "hang": STEPS * 3 // 4 + 3,
}  # fmt: skip
TIMED = ("_s", "_share", "data_wait", "tokens_per_s", "checkpoint")


def run(root: Path, name: str, accidents: dict[str, int], monkeypatch: pytest.MonkeyPatch, **launch: Any) -> list[str]:
    monkeypatch.setattr(launching, "WORKER", "soak_worker")
    monkeypatch.setenv(VARIABLE, json.dumps(accidents))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]))
    config = write_config(
        root / f"{name}.yaml", root / "model", root / "data", root / name,
        layout={"dp": 2, "zero": 1}, guard={"non_finite": "skip"}, checkpoint={"every": EVERY},
        train={
            "steps": STEPS, "micro_batch_size": 4, "accumulation": 1, "eval_every": EVERY * 2, "jit": True,
            "log_every": EVERY,
        },
        launch=launch,
    )  # fmt: skip
    lines: list[str] = []
    start = time.monotonic()
    assert launching.launch(config, echo=lines.append) == 0, "\n".join(lines)
    print(f"\n{name}: {time.monotonic() - start:.0f} s\n" + "\n".join(lines))
    return lines


def steps_of(run: Path) -> dict[int, tuple[float | None, float | None, float]]:
    records = [record for record in read_metrics(run / "metrics.jsonl") if "loss" in record]
    steps = {record["step"]: (record["loss"], record["grad_norm"], record["lr"]) for record in records}
    assert len(records) == len(steps) == STEPS, "a step stands there once"
    return steps


def evaluations_of(run: Path) -> list[tuple[int, float]]:
    records = read_metrics(run / "metrics.jsonl")
    return [(record["step"], record["eval_loss"]) for record in records if "eval_loss" in record]


def test_accidents_leave_no_trace_in_the_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_model(tmp_path / "model")
    write_data(tmp_path / "data", train=997, validation=40)
    run(tmp_path, "calm", DATA, monkeypatch)
    lines = run(
        tmp_path, "rough", {**DATA, **ACCIDENTS}, monkeypatch, restarts=3, restart_pause_s=1, stall_s=STALL_S,
        compile_s=120,
    )  # fmt: skip

    calm, rough = steps_of(tmp_path / "calm"), steps_of(tmp_path / "rough")
    assert [step for step, (loss, _, _) in calm.items() if loss is None] == [DATA["nan batch"]]
    assert calm == rough, "losses, gradient norms and learning rates, every digit"
    assert len(evaluations_of(tmp_path / "calm")) == 10
    assert evaluations_of(tmp_path / "calm") == evaluations_of(tmp_path / "rough")
    last = f"step_{STEPS:08d}"
    files = sorted(path.name for path in (tmp_path / "calm" / last).glob("*-rank*"))
    assert any(name.startswith("model") for name in files) and any(name.startswith("optimizer") for name in files)
    for name in files:
        assert (tmp_path / "calm" / last / name).read_bytes() == (tmp_path / "rough" / last / name).read_bytes(), name

    # Every accident did happen, was seen, and was named.
    records = [json.loads(line) for line in (tmp_path / "rough" / "restarts.jsonl").read_text().splitlines()]
    assert [(one["cause"], one["rank"], one["step"]) for one in records] == [
        ("died", 1, ACCIDENTS["kill"]), ("defect", 1, ACCIDENTS["defect"]), ("stalled", 1, ACCIDENTS["hang"]),
    ]  # fmt: skip
    assert [Path(one["resumes"]).name for one in records] == [
        f"step_{ACCIDENTS[name] // EVERY * EVERY:08d}" for name in ("kill", "defect", "hang")
    ]
    assert "hang_in_a_read" in records[2]["message"]
    assert sum("nothing was updated" in line for line in lines) == 2
    assert not (tmp_path / "calm" / "restarts.jsonl").exists()
