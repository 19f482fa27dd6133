"""A healthy run, written as a run directory, and ways to spoil it."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml

STEPS, WARMUP, VOCABULARY = 300, 20, 2048


@dataclass
class Run:
    """What the files of a run will hold."""

    config: dict[str, Any] = field(default_factory=dict)
    steps: list[dict[str, Any]] = field(default_factory=list)
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    checkpoints: list[dict[str, Any]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    restarts: list[dict[str, Any]] = field(default_factory=list)
    ranks: list[dict[str, Any]] = field(default_factory=list)
    data: dict[str, Any] = field(default_factory=dict)

    def change(self, key: str, value: Any, first: int = 1, last: int = STEPS) -> None:
        """Sets a figure of some steps; `value` may be a function of the step's record."""
        for one in self.steps[first - 1 : last]:
            one[key] = value(one) if callable(value) else value

    def write(self, directory: Path) -> Path:
        """Writes the files of a run directory."""
        (directory / "data").mkdir(parents=True)
        self.config["data"] = {"path": str(directory / "data")}
        self.config["model"] = {"path": str(directory / "model")}
        (directory / "model").mkdir()
        (directory / "model" / "config.json").write_text(json.dumps({"vocab_size": VOCABULARY}))
        (directory / "config.yaml").write_text(yaml.safe_dump(self.config))
        (directory / "data" / "data.json").write_text(json.dumps(self.data))
        records = sorted([*self.steps, *self.evaluations, *self.checkpoints], key=lambda one: one["step"])
        for name, lines in (("metrics", records), ("events", self.events), ("restarts", self.restarts)):
            (directory / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        (directory / "ranks.json").write_text(json.dumps({"step": STEPS, "ranks": self.ranks}))
        return directory


def healthy(seed: int = 0) -> Run:
    """300 steps on two ranks, from ln(vocabulary) to 3, with the noise of a real run."""
    rng = np.random.default_rng(seed)
    run = Run(
        config={
            "train": {"steps": STEPS, "micro_batch_size": 4, "accumulation": 8}, "layout": {"dp": 2, "tp": 1, "pp": 1},
            "schedule": {"warmup_steps": WARMUP}, "optimizer": {"lr": 1e-3, "clip_norm": 1.0},
            "metrics": {"peak_tflops": 0.1}, "launch": {"nodes": 1}, "checkpoint": {"every": 100},
        },
        data={"seq_length": 128, "tokenizer": {"vocabulary": VOCABULARY},
              "splits": {"train": {"rows": 20000, "tokens": 2_540_000}},
              "sources": [{"documents": {"train": 980, "validation": 20}}]},
        ranks=[{"rank": rank, "compute_s": 0.4, "data_s": 0.002, "memory_peak_gb": 1.2} for rank in (0, 1)],
        events=[{"at": 0.0, "step": 0, "event": "start", "versions": {"mindspore": "2.10.0"}},
                {"at": 150.0, "step": STEPS, "event": "end"}],
    )  # fmt: skip
    smooth = math.log(VOCABULARY)
    for step in range(1, STEPS + 1):
        loss = 3 + (math.log(VOCABULARY) - 3) * math.exp(-(step - 1) / 60) + float(rng.normal(0, 0.04))
        smooth = 0.95 * smooth + 0.05 * loss
        rate = min(step / WARMUP, 1) * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * max(0, step - WARMUP) / STEPS)))
        slow = float(rng.normal(1, 0.03))
        run.steps.append(
            {
                "step": step, "loss": loss, "grad_norm": 0.6 + float(rng.normal(0, 0.05)), "lr": 1e-3 * rate,
                "tokens": step * 8192, "tokens_per_s": 16000 / slow, "step_time_s": 0.5 * slow, "data_wait": 0.004,
                "loss_ema": smooth, "loss_spread": 0.04, "memory_gb": 1.1 + 0.001 * float(rng.normal()),
                "memory_peak_gb": 1.2, "mfu": 0.4, "compute_min_s": 0.4, "compute_max_s": 0.41 * slow,
                "slowest_rank": int(rng.integers(2)), "reduce_share": 0.08,
            }
        )  # fmt: skip
        if step % 50 == 0:
            run.evaluations.append({"step": step, "eval_loss": smooth + 0.05, "eval_tokens": 4096})
        if step % 100 == 0:
            run.checkpoints.append({"step": step, "checkpoint_s": 1.0, "checkpoint_blocked_s": 0.1})
    return run


def restart(number: int, step: int, cause: str = "died") -> dict[str, Any]:
    """A record of restarts.jsonl."""
    return {"at": float(number), "restart": number, "cause": cause, "rank": 1, "node": None, "message": "signal 9",
            "step": step, "resumed_before": None, "resumes": None, "pause_s": 0.0}  # fmt: skip
