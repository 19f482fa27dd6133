"""Symptoms of runs that stop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from migrate.report.model import Severity
from migrate.run_record import RunRecord
from migrate.trouble.rule import Evidence, TroubleRule

OFTEN = 3


def restarts(run: RunRecord) -> Iterator[Evidence]:
    """Every restart, and its cause."""
    for one in run.restarts:
        who = "" if one.get("rank") is None else f", rank {one['rank']}"
        yield Evidence(f"restart {one['restart']} after step {one['step']} ({one['cause']}{who}): {one['message']}",
                       "restarts.jsonl")  # fmt: skip


def loops(run: RunRecord) -> Iterator[Evidence]:
    """Restarts in the same step for the same reason, or very many."""
    places = Counter((one["step"], one["cause"]) for one in run.restarts)
    for (step, cause), count in places.items():
        if count > 1:
            yield Evidence(f"{count} restarts after step {step}, each time: {cause}", "restarts.jsonl")
    if len(run.restarts) >= OFTEN and not any(count > 1 for count in places.values()):
        yield Evidence(f"{len(run.restarts)} restarts over {len(run.steps)} steps", "restarts.jsonl", "launch.restarts")


def hangs(run: RunRecord) -> Iterator[Evidence]:
    """Restarts because a rank said nothing."""
    for one in run.restarts:
        if one["cause"] == "stalled":
            yield Evidence(f"after step {one['step']}: {one['message']}", "restarts.jsonl", "launch.stall_s")


def unfinished(run: RunRecord) -> Iterator[Evidence]:
    """No end behind the last start."""
    starts = [place for place, one in enumerate(run.events) if one["event"] in ("start", "resume")]
    if not starts:
        return
    last = run.events[starts[-1] :]
    ends = [one for one in last if one["event"] in ("end", "failure")]
    planned, done = int(run.setting("train.steps", 0)), run.steps[-1]["step"] if run.steps else 0
    if not ends and done < planned:
        yield Evidence(f"the last start has no end; step {done} of {planned} is the last one recorded", "events.jsonl")
    for one in ends:
        if one["event"] == "failure" and one.get("kind") != "RunError":
            yield Evidence(f"after step {one['step']}: {one.get('kind')}: {one['message']}", "events.jsonl")


RULES = (
    TroubleRule(
        "T801", "the run was restarted", Severity.WARNING,
        "A rank died, hung or lost its connection; steps since the last checkpoint were computed again.",
        "Read the log of the named rank in logs/; lower checkpoint.every if many steps were lost.",
        restarts,
    ),
    TroubleRule(
        "T802", "the run restarts again and again", Severity.ERROR,
        "The cause comes with the step or the machine, not by chance: a batch, too little memory, a faulty device.",
        "Do not restart it once more: find out what the named step or rank does (its log, its batch, its memory).",
        loops,
    ),
    TroubleRule(
        "T803", "the run hung", Severity.ERROR,
        "A rank waited in a collective that another one never entered: it died, computed something else, or its "
        "network or disk was gone.",
        "The stack of each rank is in logs/; the rank that stands elsewhere is the culprit.",
        hangs,
    ),
    TroubleRule(
        "T804", "the run did not reach its end", Severity.WARNING,
        "It was killed from outside (out of memory, time limit, power), ended by an error, or still runs.",
        "Look at the end of logs/ and at the machine's own log, then go on with --resume.",
        unfinished,
    ),
)  # fmt: skip
"""Rows of the trouble table."""
