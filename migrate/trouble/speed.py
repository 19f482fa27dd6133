"""Symptoms of the speed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from statistics import median

from migrate.report.model import Severity
from migrate.run_record import RunRecord
from migrate.trouble.figures import figures, middle, named
from migrate.trouble.rule import Evidence, NoEvidenceError, TroubleRule

FEW = 20
SLOWER = 1.15
"""Time of the slowest rank, in those of the fastest."""
OFTEN = 0.7
DECAY = 0.85
OUTLIER = 3.0
OUTLIERS = 0.02
LOW_MFU = 0.2
REDUCE, MUCH = 0.2, 0.3
"""Share of a step in the sum of gradients from which it is worth a look, and from which it is too much."""


def straggler(run: RunRecord) -> Iterator[Evidence]:
    """One rank that is the slowest most of the time, by far."""
    slowest = [one for one in run.steps[1:] if "slowest_rank" in one]
    if len(slowest) < FEW:
        raise NoEvidenceError(f"times by rank of {FEW} steps")
    rank, count = Counter(one["slowest_rank"] for one in slowest).most_common(1)[0]
    ratio = median(one["compute_max_s"] / max(one["compute_min_s"], 1e-9) for one in slowest)
    if count > OFTEN * len(slowest) and ratio > SLOWER:
        yield Evidence(f"rank {rank} is the slowest in {count} of {len(slowest)} steps; the slowest rank takes "
                       f"{ratio:.2f} times the fastest one's time")  # fmt: skip


def decays(run: RunRecord) -> Iterator[Evidence]:
    """Second against last quarter."""
    points = figures(run, "tokens_per_s", 2 * FEW)
    quarter = len(points) // 4
    before, after = points[quarter : 2 * quarter], points[-quarter:]
    if middle(after) < DECAY * middle(before):
        yield Evidence(f"median {middle(before):,.0f} tokens/s in steps {before[0][0]} to {before[-1][0]}, "
                       f"{middle(after):,.0f} in steps {after[0][0]} to {after[-1][0]}")  # fmt: skip


def hiccups(run: RunRecord) -> Iterator[Evidence]:
    """Steps that take several times the usual."""
    points = figures(run, "step_time_s", 2 * FEW)[1:]
    usual = middle(points)
    slow = [step for step, seconds in points if seconds > OUTLIER * usual]
    if len(slow) > max(1, OUTLIERS * len(points)):
        saving = {int(one["step"]) + 1 for one in run.checkpoints}
        behind = sum(step in saving for step in slow)
        hint = f"; {behind} of them follow a checkpoint" if behind else ""
        yield Evidence(f"{len(slow)} of {len(points)} steps take more than {OUTLIER:g} times the median of "
                       f"{usual:.3g} s: {named(slow)}{hint}")  # fmt: skip


def low_utilisation(run: RunRecord) -> Iterator[Evidence]:
    """Median of the utilisation."""
    share = middle(figures(run, "mfu", FEW))
    if share < LOW_MFU:
        yield Evidence(f"median utilisation {share:.1%} of {run.setting('metrics.peak_tflops')} TFLOP/s",
                       setting="metrics.peak_tflops")  # fmt: skip


def communicates(run: RunRecord) -> Iterator[Evidence]:
    """Median share of the sum of gradients."""
    share = middle(figures(run, "reduce_share", FEW))
    if share > REDUCE:
        extent = "far more than" if share > MUCH else "more than"
        yield Evidence(f"the sum of gradients takes {share:.0%} of a step on the rank that waits least, {extent} "
                       f"{REDUCE:.0%}")  # fmt: skip


RULES = (
    TroubleRule(
        "T601", "one rank is slower than the others", Severity.WARNING,
        "Its device is throttled, shared or faulty, its host is busy, or its part of the model is larger (pipeline "
        "stages with the embedding or the head).",
        "Look at the rank's machine (temperature, other processes) and swap it; if the slow rank moves with the "
        "layout, give its stage fewer layers.",
        straggler,
    ),
    TroubleRule(
        "T602", "throughput falls over time", Severity.WARNING,
        "A device gets hot, memory fragments or is swapped out, logs or a disk fill up, or the texts get shorter.",
        "Compare memory_gb and data_wait over the same steps; restart from a checkpoint: if the speed comes back, "
        "something in the process grows.",
        decays,
    ),
    TroubleRule(
        "T603", "single steps are far slower", Severity.NOTE,
        "Checkpoints that block, evaluations that compile, garbage collection, or a shape that is compiled anew.",
        "Save asynchronously, keep shapes fixed; steps at regular distances point at what happens at that distance.",
        hiccups,
    ),
    TroubleRule(
        "T604", "low utilisation (MFU)", Severity.NOTE,
        "Micro-batches too small, too much communication or recomputation, operators that are not fused, or a peak of "
        "another precision than the run's.",
        "Profile some steps (--profile steps=a:b), raise train.micro_batch_size, recompute less; check "
        "metrics.peak_tflops. msmigrate plan says what the layout allows.",
        low_utilisation,
    ),
    TroubleRule(
        "T605", "much of a step is communication", Severity.WARNING,
        "Gradients are summed too often for what is computed between, or over a slow link.",
        "Raise train.accumulation, keep tp inside a node, use layout.zero 1 with fused buckets; if scaling efficiency "
        "stays below 60 %, take another layout: msmigrate plan.",
        communicates,
    ),
)  # fmt: skip
"""Rows of the trouble table."""
