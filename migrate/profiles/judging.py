"""`profile`: where the time of some steps went, and what to do about it."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean
from typing import Any

from mappings.errors import UserError
from migrate.profiles.reading import Recording, read_recordings
from migrate.report.model import Finding, Report, Severity, Stage, Verdict
from migrate.run_record import RunRecord

MUCH, TOO_MUCH = 0.2, 0.3
"""Shares of communication that are worth a look, and too much."""
WAIT, BUBBLE, HOST, EFFICIENCY = 0.1, 0.2, 0.3, 0.6
OPERATORS = 15
"""Operators that are listed."""


def profile(directory: Path, baseline: Path | None = None) -> Report:
    """Shares of the recorded steps: computation, communication, data, bubble, host; advice where one is large.

    Args:
        directory: of the run.
        baseline: run of the same model on fewer ranks, to state the scaling efficiency.

    Raises:
        UserError: no recording, or runs that do not belong together.
    """
    run = RunRecord.read(directory)
    recordings = read_recordings(directory)
    first, last = run.setting("profile.steps", (0, 0))
    steps = [one for one in run.steps if first <= one["step"] <= last]
    if not steps:
        raise UserError(f"{directory}: metrics.jsonl has none of the recorded steps {first} to {last}")
    wall = sum(float(one["step_time_s"]) for one in steps)
    data = sum(float(one["data_wait"]) * float(one["step_time_s"]) for one in steps) / wall
    # The rank that waits least for others computes most: its communication is the traffic, not the waiting.
    least = min(recordings, key=lambda one: one.communication_s)
    shares: dict[str, float] = {
        "computation": max(one.compute_s for one in recordings) / wall,
        "communication": least.communication_s / wall,
        "data": data,
        "host": max(0.0, fmean(_idle(one, wall) for one in recordings) / wall - data),
    }
    if (bubble := _bubble(run, recordings, wall)) is not None:
        shares["bubble"] = bubble
    if baseline is not None:
        shares["scaling efficiency"] = _efficiency(run, RunRecord.read(baseline))
    figures: dict[str, float | int | str] = {name: f"{share:.1%}" for name, share in shares.items()}
    ranks = "1 rank" if len(recordings) == 1 else f"{len(recordings)} ranks"
    span = f"1 step ({first})" if len(steps) == 1 else f"{len(steps)} steps ({first} to {last})"
    message = f"{span}, {ranks} recorded, {wall / len(steps):.3f} s a step"
    if among := [one["step"] for one in run.evaluations if first <= one["step"] < last]:
        message += f"; the evaluation after step {among[0]} lies among them, its operators count"
    findings = _findings(shares, is_compiled=bool(run.setting("train.jit", True)))
    is_bad = any(finding.severity is not Severity.NOTE for finding in findings)
    stage = Stage("shares of a step", Verdict.FAIL if is_bad else Verdict.PASS, message, len(steps), figures)
    facts: dict[str, Any] = {
        "ranks": [{"rank": one.rank, "computation_s": round(one.compute_s, 4),
                   "communication_s": round(one.communication_s, 4)} for one in recordings],
        "operators": [{"operator": kind, "calls": calls, "seconds": round(seconds, 4),
                       "share": f"{seconds / wall:.1%}"} for kind, calls, seconds in least.operators[:OPERATORS]],
        "shares": {name: round(share, 4) for name, share in shares.items()},
    }  # fmt: skip
    return Report("profile", str(directory), findings=findings, stages=[stage], facts=facts)


def _idle(one: Recording, wall: float) -> float:
    return max(0.0, wall - one.busy_s) if one.idle_s is None else one.idle_s


def _bubble(run: RunRecord, recordings: list[Recording], wall: float) -> float | None:
    """Share in which stages wait for each other; measured where the device tells, else by playing the schedule.

    The table of the schedule is played with each stage's measured computation, forward one third of it (a backward pass
    is two forwards), and with equal stages where only some were recorded.
    """
    pp = int(run.setting("layout.pp", 1))
    if pp == 1:
        return None
    told = [one.bubble_s for one in recordings if one.bubble_s]
    if told:
        return fmean(told) / wall
    from mappings.layout import ParallelLayout
    from ms_models.parallel.schedules import build_schedule
    from ms_models.parallel.schedules.running import Costs, Transport, run_table

    layout = ParallelLayout.from_dict(dict(run.config["layout"]))
    weights = [0.0] * pp
    for one in recordings:
        stage = layout.coordinates(one.rank)["pp"]
        weights[stage] = max(weights[stage], one.compute_s)
    costs = Costs(weights=tuple(weights) * layout.vpp) if all(weights) else Costs()
    name = run.setting("parallel.schedule") or ("interleaved" if layout.vpp > 1 else "1f1b")
    schedule = build_schedule(name, layout, int(run.setting("train.accumulation", 1)), Transport.ALL_REDUCE)
    return float(run_table(schedule, Transport.ALL_REDUCE, costs).bubble)


def _efficiency(run: RunRecord, baseline: RunRecord) -> float:
    """Tokens per second and rank, in those of the baseline."""
    if run.model != baseline.model:
        raise UserError(f"{baseline.directory}: trains another model than {run.directory}; no efficiency follows")
    speeds = []
    for one in (run, baseline):
        values = sorted(one.series("tokens_per_s")[1][1:])
        if not values:
            raise UserError(f"{one.directory}: has fewer than two steps")
        speeds.append(values[len(values) // 2] / one.world_size)
    return speeds[0] / speeds[1]


def _findings(shares: dict[str, float], *, is_compiled: bool) -> list[Finding]:
    found = []
    communication = shares["communication"]
    if communication > MUCH:
        found.append(_finding(
            "P101", Severity.WARNING if communication > TOO_MUCH else Severity.NOTE,
            f"communication takes {communication:.1%} of a step", "Ranks wait for traffic in place of computing.",
            "Raise train.accumulation, so that gradients are summed less often; keep tp inside a node; sum in large "
            "buckets (layout.zero 1); take a layout with less traffic: msmigrate plan.",
        ))  # fmt: skip
    if shares["data"] > WAIT:
        found.append(_finding(
            "P102", Severity.WARNING, f"steps wait {shares['data']:.1%} of their time for data",
            "Reading is slower than computing.",
            "Copy the shards to a local disk, leave cores to the loader, use larger micro-batches.",
        ))  # fmt: skip
    if shares.get("bubble", 0.0) > BUBBLE:
        found.append(_finding(
            "P103", Severity.WARNING, f"pipeline stages are idle {shares['bubble']:.1%} of the time",
            "Too few micro-batches for the number of stages, or stages of unequal length.",
            "Raise train.accumulation to 4 to 8 times layout.pp, use interleaved stages (layout.vpp 2), or give the "
            "longest stage fewer layers.",
        ))  # fmt: skip
    if shares["host"] > HOST:
        found.append(_finding(
            "P104", Severity.NOTE, f"no operator runs in {shares['host']:.1%} of a step",
            "The host cannot start operators as fast as the device finishes them.",
            ("Use" if is_compiled else "Compile the step (train.jit: true), use")
            + " larger micro-batches or longer sequences.",
        ))  # fmt: skip
    if shares.get("scaling efficiency", 1.0) < EFFICIENCY:
        found.append(_finding(
            "P105", Severity.WARNING, f"scaling efficiency is {shares['scaling efficiency']:.1%}",
            "A rank does less in the same time than it did in the smaller run.",
            "Fuse and accumulate first; then look for a layout with less traffic: msmigrate plan, msmigrate ladder.",
        ))  # fmt: skip
    return found


def _finding(code: str, severity: Severity, message: str, why: str, fix: str) -> Finding:
    return Finding(code, severity, message, why, fix)
