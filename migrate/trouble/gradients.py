"""Symptoms of the gradient norm."""

from __future__ import annotations

from collections.abc import Iterator

from migrate.report.model import Severity
from migrate.run_record import RunRecord
from migrate.trouble.figures import after_warmup, ends, figures, named
from migrate.trouble.rule import Evidence, TroubleRule

FEW = 30
GROWTH = 4.0
CLIPPED = 0.9
FAR = 2.0


def grows(run: RunRecord) -> Iterator[Evidence]:
    """First against last tenth behind the warmup."""
    points = after_warmup(run, figures(run, "grad_norm"), FEW)
    first, last = ends(points)
    if first > 0 and last > GROWTH * first:
        yield Evidence(f"mean norm {first:.4g} in the first and {last:.4g} in the last tenth behind the warmup "
                       f"(steps {points[0][0]} to {points[-1][0]})")  # fmt: skip


def always_clipped(run: RunRecord) -> Iterator[Evidence]:
    """Share of steps far above the limit."""
    limit = float(run.setting("optimizer.clip_norm", 0.0))
    points = after_warmup(run, figures(run, "grad_norm"), FEW)
    far = [step for step, norm in points if limit and norm > FAR * limit]
    if len(far) > CLIPPED * len(points):
        typical = sorted(norm for _, norm in points)[len(points) // 2]
        yield Evidence(f"{len(far)} of {len(points)} steps behind the warmup exceed twice the limit of {limit:g}; the "
                       f"median norm is {typical:.4g}", setting="optimizer.clip_norm")  # fmt: skip


def vanishes(run: RunRecord) -> Iterator[Evidence]:
    """Norms of zero."""
    steps = [step for step, norm in figures(run, "grad_norm") if norm == 0]
    if steps:
        yield Evidence(f"the norm is exactly 0 in {named(steps)}")


RULES = (
    TroubleRule(
        "T301", "gradient norm grows", Severity.WARNING,
        "The run drifts towards divergence: the learning rate is too high, weight decay missing, or logits and "
        "attention scores grow. In a migrated model also a norm that is computed in low precision.",
        "Lower optimizer.lr, keep optimizer.weight_decay at 0.1, watch the largest logits; compare the norm with that "
        "of the original over the same steps.",
        grows,
    ),
    TroubleRule(
        "T302", "nearly every step is clipped", Severity.NOTE,
        "The limit of the gradient norm is far below the usual norm, so that it sets the length of every step: AdamW "
        "hardly notices, but gradients of unusual batches are not told apart any more.",
        "Raise optimizer.clip_norm to about the median norm, or find out why the norm is that large: a sum in place of "
        "a mean over tokens multiplies it by the number of tokens.",
        always_clipped,
    ),
    TroubleRule(
        "T303", "gradient norm is zero", Severity.ERROR,
        "No parameter gets a gradient: frozen weights, an output that does not depend on them, or a function that "
        "cuts the gradient off (in MindSpore a named tuple inside ms.jit does, without a word).",
        "Compare the gradients of one batch with the original: msmigrate parity model --stages W,F,L,G.",
        vanishes,
    ),
)  # fmt: skip
"""Rows of the trouble table."""
