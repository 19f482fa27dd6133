"""Symptoms of the data."""

from __future__ import annotations

from collections.abc import Iterator

from migrate.report.model import Severity
from migrate.run_record import RunRecord
from migrate.trouble.figures import figures, middle
from migrate.trouble.rule import Evidence, NoEvidenceError, TroubleRule

WAIT = 0.1
PADDING = 0.1
EPOCHS = 4.0
"""Muennighoff et al. 2023 (arXiv 2305.16264): up to four epochs are nearly as good as new text."""
FEW = 10


def slow(run: RunRecord) -> Iterator[Evidence]:
    """Median share of a step."""
    points = figures(run, "data_wait", FEW)[1:]
    share = middle(points)
    if share > WAIT:
        slowest = max(run.ranks, key=lambda one: float(one.get("data_s", 0)), default=None)
        who = f"; rank {slowest['rank']} waits longest, {slowest['data_s']:.3f} s a step" if slowest else ""
        yield Evidence(f"half of the steps wait {share:.0%} of their time or more for data{who}")


def padding(run: RunRecord) -> Iterator[Evidence]:
    """Share of positions in the training split that are padding."""
    split = run.data.get("splits", {}).get("train", {})
    rows, tokens, length = split.get("rows"), split.get("tokens"), run.data.get("seq_length")
    if not (rows and tokens and length):
        raise NoEvidenceError("data.json")
    share = 1 - tokens / (rows * length)
    if share > PADDING:
        yield Evidence(f"{share:.1%} of {rows * length:,} positions are padding", "data.json")


def repeated(run: RunRecord) -> Iterator[Evidence]:
    """Epochs read so far."""
    rows = run.data.get("splits", {}).get("train", {}).get("rows")
    if not rows or not run.steps:
        raise NoEvidenceError("data.json and steps")
    batch = 1
    for name in ("train.micro_batch_size", "train.accumulation", "layout.dp"):
        batch *= int(run.setting(name, 1))
    epochs = run.steps[-1]["step"] * batch / rows
    if epochs > EPOCHS:
        yield Evidence(f"{run.steps[-1]['step']:,} steps of {batch} sequences read the {rows:,} sequences "
                       f"{epochs:.1f} times", "data.json")  # fmt: skip


RULES = (
    TroubleRule(
        "T501", "steps wait for data", Severity.WARNING,
        "Reading is slower than computing: shards on a slow or remote disk, too few reading threads, or other "
        "processes on the same cores.",
        "Copy the shards to a local disk, leave cores to the loader (train.threads), use larger micro-batches.",
        slow,
    ),
    TroubleRule(
        "T502", "much of the data is padding", Severity.WARNING,
        "Documents are far shorter than a sequence and are not packed, or the last piece of each is filled up.",
        "Prepare the data with packing, or with a shorter --seq-length.",
        padding,
    ),
    TroubleRule(
        "T503", "the same text is read many times", Severity.WARNING,
        "The run is longer than the data.",
        "Add text or stop earlier; watch the validation loss, which rises once the model learns texts by heart.",
        repeated,
    ),
)  # fmt: skip
"""Rows of the trouble table."""
