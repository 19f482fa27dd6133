"""`Meter`: what is derived from a step: smoothed loss, shares of its time, memory, utilisation, the slowest rank."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ms_models.compat.device import synchronize
from ms_models.parallel.mesh import Mesh
from ms_models.train import phases
from ms_models.train.checkpoints.run_directory import METRICS
from ms_models.train.config import RunConfig
from ms_models.train.services.across_ranks import gather_figures
from ms_models.train.services.memory import memory_now, memory_peak
from ms_models.train.services.metrics_file import read_metrics
from ms_models.train.services.phase_times import PhaseTimes
from ms_models.train.services.smoothing import Smoothed

RANKS = "ranks.json"
"""Figures by rank, in the run directory."""
RANKS_EVERY = 20
"""Steps between its versions."""
TIMED_PHASES = ("data", "compute", "reduce", "update")


class Meter:
    """Completes the record of each step; every rank has one, as ranks tell each other their times.

    Args:
        config: of the run.
        mesh: of this rank.
        step_flops: operations of a step that count as useful; None where nobody knows them.
        resume_step: step that the run goes on behind, 0 at the start.
    """

    def __init__(self, config: RunConfig, mesh: Mesh, step_flops: float | None, resume_step: int) -> None:
        self._config, self._mesh, self._step_flops = config.metrics, mesh, step_flops
        self._run, self._last = Path(config.output.directory), config.train.steps
        past = _past(self._run / METRICS, resume_step) if mesh.rank == 0 else []
        self._loss = Smoothed.over(config.metrics.smoothing, map(_counted, past))
        self._is_reached = any("target_loss" in record for record in past)
        self._times = PhaseTimes(synchronize if config.metrics.phases else _do_not_wait)
        phases.observe(self._times.enter if config.metrics.phases else _ignore)
        self._sums = np.zeros((mesh.layout.world_size, 2))
        self._steps = 0

    def complete(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """The record of a step with what follows from it. Every rank calls it."""
        elapsed = record["step_time_s"]
        result = dict(record)
        if (loss := _counted(record)) is not None:
            self._loss.add(loss)
        result |= {"loss_ema": self._loss.mean, "loss_spread": self._loss.spread} if self._loss.known else {}
        target = self._config.target_loss
        if target is not None and not self._is_reached and self._loss.known and self._loss.mean <= target:
            self._is_reached, result["target_loss"] = True, target
        times = self._times.take()
        result |= {f"time_{name}_s": times.get(name, 0.0) for name in TIMED_PHASES if times}
        if self._step_flops is not None:
            result["tflops"] = self._step_flops / elapsed / self._mesh.layout.world_size / 1e12
            if self._config.peak_tflops is not None:
                result["mfu"] = result["tflops"] / self._config.peak_tflops
        own = [times.get("compute", elapsed), times.get("reduce", 0.0), memory_now(), memory_peak()]
        ranks = gather_figures([*own, times.get("data", 0.0)], self._mesh)
        result |= {"memory_gb": float(ranks[:, 2].max()), "memory_peak_gb": float(ranks[:, 3].max())}
        if len(ranks) > 1:
            result |= {
                "compute_min_s": float(ranks[:, 0].min()),
                "compute_max_s": float(ranks[:, 0].max()),
                "slowest_rank": int(ranks[:, 0].argmax()),
                # The rank that comes last waits for nobody, so that its time is that of the sum itself.
                "reduce_share": float(ranks[:, 1].min()) / elapsed,
            }
        self._keep(record["step"], ranks)
        return result

    def _keep(self, step: int, ranks: np.ndarray) -> None:
        """Averages by rank, without the first step, which compiles."""
        if self._steps:
            self._sums += ranks[:, [0, 4]]
        self._steps += 1
        if self._mesh.rank or self._steps < 2 or not (step % RANKS_EVERY == 0 or step == self._last):
            return
        means = self._sums / (self._steps - 1)
        figures = [
            {"rank": rank, "compute_s": compute, "data_s": data, "memory_peak_gb": float(ranks[rank, 3])}
            for rank, (compute, data) in enumerate(means.tolist())
        ]
        temporary = self._run / f"{RANKS}.tmp"
        temporary.write_text(json.dumps({"step": step, "steps": self._steps - 1, "ranks": figures}), encoding="utf-8")
        temporary.replace(self._run / RANKS)


def _counted(record: Mapping[str, Any]) -> float | None:
    """The loss of a step that was taken; None of other records."""
    loss: float | None = record.get("loss")
    return loss if record.get("outcome", "updated") == "updated" else None


def _past(path: Path, resume_step: int) -> list[dict[str, Any]]:
    return [one for one in read_metrics(path) if one["step"] <= resume_step] if resume_step and path.is_file() else []


def _do_not_wait() -> None:
    """Parts of a step may overlap."""


def _ignore(phase: str) -> None:
    """Nobody asks when a part begins."""
