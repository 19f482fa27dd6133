"""Figures of a run as a person reads them: its curves, its events, its totals."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from migrate.report.model import Curve
from migrate.run_record import RunRecord

POINTS = 400
"""Most points of a curve; of longer ones the lowest and the highest of each piece are drawn."""


@dataclass(frozen=True)
class Plot:
    """One diagram of the page."""

    key: str
    title: str
    unit: str
    log: bool = False
    also: str | None = None
    """A second figure drawn with it, where there is one run."""


PLOTS = (
    Plot("loss", "Loss", "nats per token", also="loss_ema"),
    Plot("eval_loss", "Validation loss", "nats per token"),
    Plot("eval_accuracy", "Validation accuracy", "share of tokens"),
    Plot("loss_spread", "Spread of the loss around its average", "nats"),
    Plot("grad_norm", "Gradient norm", "before clipping", log=True),
    Plot("update_ratio", "Size of the update", "norm, in that of the weights", log=True),
    Plot("lr", "Learning rate", ""),
    Plot("loss_scale", "Loss scale", "", log=True),
    Plot("tokens_per_s", "Throughput", "tokens/s"),
    Plot("mfu", "Utilisation (MFU)", "share of the stated peak"),
    Plot("step_time_s", "Time of a step", "s", log=True, also="time_compute_s"),
    Plot("data_wait", "Waiting for data", "share of a step"),
    Plot("reduce_share", "Sum of gradients", "share of a step"),
    Plot("memory_gb", "Memory of the fullest rank", "GB"),
)
NAMES = {"loss_ema": "smoothed", "time_compute_s": "forward and backward"}


def curve(run: RunRecord, name: str, key: str) -> Curve:
    """A figure by step, thinned."""
    steps, values = run.series(key)
    x, y = thinned(steps, values)
    return Curve(name, x, y, key)


def thinned(steps: Sequence[int], values: Sequence[float]) -> tuple[list[float], list[float]]:
    """At most `POINTS` points that keep every peak."""
    if len(steps) <= POINTS:
        return [float(step) for step in steps], list(values)
    x: list[float] = []
    y: list[float] = []
    pieces = POINTS // 2
    for piece in range(pieces):
        places = range(piece * len(steps) // pieces, (piece + 1) * len(steps) // pieces)
        ends = {min(places, key=values.__getitem__), max(places, key=values.__getitem__)}
        for place in sorted(ends):
            x.append(float(steps[place]))
            y.append(values[place])
    return x, y


def totals(run: RunRecord) -> dict[str, str]:
    """What a run came to, by name."""
    found: dict[str, str] = {"state": state(run)}
    planned = run.setting("train.steps")
    if run.steps:
        last = run.steps[-1]
        found["steps"] = f"{last['step']:,}" + (f" of {planned:,}" if planned else "")
        found["tokens"] = f"{last['tokens']:,}"
        for key, name, form in (("loss", "last loss", ".4f"), ("loss_ema", "smoothed loss", ".4f")):
            if isinstance(last.get(key), float):
                found[name] = format(last[key], form)
    if run.evaluations:
        best = min(run.evaluations, key=lambda one: float(one["eval_loss"]))
        found["best validation loss"] = f"{best['eval_loss']:.4f} (step {best['step']})"
        if best.get("eval_accuracy") is not None:
            found["accuracy there"] = f"{best['eval_accuracy']:.2%}"
    for key, name, form in (
        ("tokens_per_s", "tokens/s, median", ",.0f"), ("step_time_s", "seconds per step, median", ".3g"),
        ("mfu", "MFU, median", ".1%"), ("data_wait", "waiting for data, median", ".1%"),
    ):  # fmt: skip
        values = run.series(key)[1]
        if len(values) > 1:
            found[name] = format(median(values[1:]), form)
    peaks = run.series("memory_peak_gb")[1]
    if peaks:
        found["memory of the fullest rank"] = f"{max(peaks):.2f} GB"
    found["checkpoints"] = f"{len(run.checkpoints):,}"
    found["restarts"] = f"{len(run.restarts):,}"
    for event in run.events:
        if event["event"] == "target":
            reached = f"step {event['step']}, {event['tokens']:,} tokens"
            found[f"smoothed loss of {event['target_loss']:g} reached"] = reached
    return found


def state(run: RunRecord) -> str:
    """How the run stands."""
    last = next((one for one in reversed(run.events) if one["event"] in ("start", "resume", "end", "failure")), None)
    if last is None:
        return "unknown"
    planned = run.setting("train.steps", 0)
    if last["event"] == "end":
        return "finished" if not planned or last["step"] >= planned else f"stopped after step {last['step']}"
    return f"failed after step {last['step']}" if last["event"] == "failure" else "running, or killed"


def happened(run: RunRecord) -> list[dict[str, Any]]:
    """Starts, ends, skips, restarts and checkpoints in the order of time, or of steps where no time is known."""
    found = [{"at": one["at"], "step": one["step"], "what": one["event"], "detail": _detail(one)} for one in run.events]
    for one in run.restarts:
        who = "" if one.get("rank") is None else f"rank {one['rank']}: "
        detail = f"{who}{one['message']}; goes on from {one.get('resumes') or 'the beginning'}"
        found.append({"at": one["at"], "step": one["step"], "what": "restart", "detail": detail})
    found.sort(key=lambda one: float(one["at"]))
    return [{**one, "time": time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(float(one["at"])))} for one in found]


def _detail(event: dict[str, Any]) -> str:
    if event["event"] == "failure":
        return f"{event.get('kind')}: {event['message']}"
    if event["event"] == "skip":
        return str(event.get("outcome", ""))
    if event["event"] == "skip":
        return str(event.get("outcome", ""))
    if event["event"] == "target":
        return f"smoothed loss {event['target_loss']:g} after {event['tokens']:,} tokens"
    return ", ".join(f"{name} {version}" for name, version in event.get("versions", {}).items())


def flat(values: Any, prefix: str = "") -> dict[str, str]:
    """Settings by dotted name, as text."""
    if not isinstance(values, dict):
        shown = ", ".join(map(str, values)) if isinstance(values, list) else "" if values is None else str(values)
        return {prefix: shown}
    found: dict[str, str] = {}
    for name, value in values.items():
        found |= flat(value, f"{prefix}.{name}" if prefix else str(name))
    return found
