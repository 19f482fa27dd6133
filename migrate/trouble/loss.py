"""Symptoms of the loss."""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import fmean, median

from migrate.report.model import Severity
from migrate.run_record import RunRecord
from migrate.trouble.figures import after_warmup, ends, losses, named
from migrate.trouble.rule import Evidence, NoEvidenceError, TroubleRule

FEW = 30
"""Steps below which the trend of a loss says nothing."""
FALL = 0.005
"""Share by which the loss falls at least between the first and the last tenth of a healthy run."""
WINDOW = 20
DEVIATIONS = 8.0
"""A spike stands out of the steps before it by this many median deviations, and by `SPIKE` nats. Normal noise exceeds
six median deviations (four standard deviations) once in 30,000 steps."""
SPIKE = 0.3
ABOVE = 1.0
"""Nats above ln(vocabulary), the loss of a model that knows nothing."""
LEAK = 0.5
"""Nats below which no model starts on text it has not seen: perplexity 1.6."""
DIVERGED = 0.5


def not_falling(run: RunRecord) -> Iterator[Evidence]:
    """First against last tenth behind the warmup."""
    points = after_warmup(run, losses(run), FEW)
    first, last = ends(points)
    if last > first * (1 - FALL):
        yield Evidence(
            f"mean loss {first:.4f} in the first and {last:.4f} in the last tenth of {len(points)} steps behind the "
            f"warmup (steps {points[0][0]} to {points[-1][0]})"
        )


def spikes(run: RunRecord) -> Iterator[Evidence]:
    """Steps whose loss stands out of those before."""
    points = losses(run)
    if len(points) <= WINDOW:
        raise NoEvidenceError(f"{WINDOW + 1} steps")
    found = []
    for place in range(WINDOW, len(points)):
        before = [value for _, value in points[place - WINDOW : place]]
        usual = median(before)
        deviation = median(abs(value - usual) for value in before)
        step, value = points[place]
        if value - usual > max(SPIKE, DEVIATIONS * deviation):
            found.append((step, value, usual))
    if found:
        step, value, usual = max(found, key=lambda one: one[1] - one[2])
        yield Evidence(f"{named([one[0] for one in found])}; the highest is {value:.4f} in step {step}, where the "
                       f"{WINDOW} steps before it had a median of {usual:.4f}")  # fmt: skip


def starts_above(run: RunRecord) -> Iterator[Evidence]:
    """Step 1 against ln(vocabulary)."""
    first, vocabulary = _first(run), _vocabulary(run)
    if first > math.log(vocabulary) + ABOVE:
        yield Evidence(f"loss {first:.4f} in step 1; ln({vocabulary:,}) is {math.log(vocabulary):.4f}")


def starts_below(run: RunRecord) -> Iterator[Evidence]:
    """Step 1 against what is possible."""
    first = _first(run)
    if first < LEAK:
        yield Evidence(f"loss {first:.4f} in step 1, a perplexity of {math.exp(first):.2f} before anything was learned")


def diverged(run: RunRecord) -> Iterator[Evidence]:
    """Lowest average against the last one."""
    points = losses(run)
    if len(points) < FEW:
        raise NoEvidenceError(f"{FEW} steps")
    size = max(5, len(points) // 20)
    means = [fmean(v for _, v in points[end - size : end]) for end in range(size, len(points) + 1)]
    lowest = min(range(len(means)), key=means.__getitem__)
    if means[-1] > means[lowest] + DIVERGED:
        yield Evidence(f"mean of {size} steps {means[lowest]:.4f} up to step {points[lowest + size - 1][0]}, "
                       f"{means[-1]:.4f} at the end (step {points[-1][0]})")  # fmt: skip


def _first(run: RunRecord) -> float:
    if not run.steps or run.steps[0]["step"] != 1 or run.steps[0]["loss"] is None:
        raise NoEvidenceError("step 1")
    return float(run.steps[0]["loss"])


def _vocabulary(run: RunRecord) -> int:
    found = run.model.get("vocab_size") or run.data.get("tokenizer", {}).get("vocabulary")
    if not isinstance(found, int):
        raise NoEvidenceError("the model's config.json or data.json")
    return found


RULES = (
    TroubleRule(
        "T101", "loss does not fall", Severity.ERROR,
        "The learning rate is zero, far too low or too high; weights are frozen or get no gradient; labels do not "
        "belong to the inputs; or the model is trained on what it knows already.",
        "Overfit one batch first: repeat it for 50 steps, its loss must approach 0. If it does not, compare gradients "
        "with the original (msmigrate parity model). If it does, raise optimizer.lr three times, and look at labels.",
        not_falling,
    ),
    TroubleRule(
        "T102", "loss spikes", Severity.WARNING,
        "A batch of unusual text (repetitions, binary, another language), a learning rate at the edge, or rare large "
        "gradients that are not clipped.",
        "Look at the batches of these steps. Set optimizer.clip_norm to 1.0 and lower optimizer.lr; if the same batch "
        "makes the spike again after a resume, take it out of the data.",
        spikes,
    ),
    TroubleRule(
        "T103", "loss starts far above ln(vocabulary)", Severity.ERROR,
        "The weights do not fit the tokens: another tokenizer or vocabulary, labels shifted twice or not at all, "
        "weights not loaded or loaded into the wrong places, logits scaled wrongly.",
        "Run msmigrate check on the model directory, compare tokenizer.json of data and model, and compare the loss of "
        "one batch with the original: msmigrate parity model.",
        starts_above,
    ),
    TroubleRule(
        "T104", "loss starts close to zero", Severity.ERROR,
        "The model sees what it is to predict: labels without shift, a mask that is not causal, or data that consists "
        "of padding and repetitions that count.",
        "Look at input_ids and labels of one row of the data; padding must be -100 in labels. A real model that was "
        "trained on this very text starts low, too: then the validation loss is the one to watch.",
        starts_below,
    ),
    TroubleRule(
        "T105", "loss fell, then went up for good", Severity.ERROR,
        "Divergence: the learning rate is too high for the batch size or for this phase, or a state (optimizer, loss "
        "scale) was damaged or lost by a resume.",
        "Go back to the checkpoint before the turn with a third of optimizer.lr; if the turn is at a resume, compare "
        "the moments before and after.",
        diverged,
    ),
)  # fmt: skip
"""Rows of the trouble table."""
