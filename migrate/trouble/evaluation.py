"""Symptoms of evaluations."""

from __future__ import annotations

from collections.abc import Iterator

from migrate.report.model import Severity
from migrate.run_record import RunRecord
from migrate.trouble.rule import Evidence, NoEvidenceError, TroubleRule

RISE = 0.05
GAP = 0.5
FEW = 20
"""Documents of a validation split below which its loss says little about the training texts. The samples' data has
2 of 112 (2 MB of Python's library), and its validation loss lay 1.07 below that of training in a healthy run."""


def overfits(run: RunRecord) -> Iterator[Evidence]:
    """Validation rises while training falls."""
    points = [(one["step"], float(one["eval_loss"])) for one in run.evaluations]
    if len(points) < 3:
        raise NoEvidenceError("three evaluations")
    step, lowest = min(points, key=lambda one: one[1])
    last_step, last = points[-1]
    behind = [loss for other, loss in points if other > step]
    trained = _trained(run)
    if len(behind) >= 2 and last > lowest + RISE and trained[last_step] < trained[step]:
        yield Evidence(f"validation loss {lowest:.4f} at step {step}, {last:.4f} at step {last_step}; the smoothed "
                       f"training loss went from {trained[step]:.4f} to {trained[last_step]:.4f}")  # fmt: skip


def below_training(run: RunRecord) -> Iterator[Evidence]:
    """Validation far below training, over documents enough to tell."""
    if not (0 < _validation_documents(run) < FEW):
        yield from _far_below(run)


def below_training_by_chance(run: RunRecord) -> Iterator[Evidence]:
    """Validation far below training, over so few documents that chance may have chosen easy ones."""
    if (count := _validation_documents(run)) == 0:
        raise NoEvidenceError("the description of the data, with its documents")
    if count < FEW:
        for one in _far_below(run):
            documents = "document" if count == 1 else "documents"
            yield Evidence(f"{one.message}; all validation rows are of {count} {documents}", one.file, one.setting)


def _validation_documents(run: RunRecord) -> int:
    """Documents of the validation split; 0 where the run does not tell."""
    return sum(int(source["documents"].get("validation", 0)) for source in run.data.get("sources", ()))


def _far_below(run: RunRecord) -> Iterator[Evidence]:
    if not run.evaluations:
        raise NoEvidenceError("an evaluation")
    one, trained = run.evaluations[-1], _trained(run)
    step, found = one["step"], float(one["eval_loss"])
    # While the loss falls fast its average lags behind; the step's own loss, if it is a number, does not.
    own = [float(record["loss"]) for record in run.steps if record["step"] == step and record.get("loss") is not None]
    if step in trained and found < min([trained[step], *own]) - GAP:
        yield Evidence(f"validation loss {found:.4f}, smoothed training loss {trained[step]:.4f} at step {step}")


def above_training(run: RunRecord) -> Iterator[Evidence]:
    """Validation far above training from the first evaluation on."""
    if len(run.evaluations) < 2:
        raise NoEvidenceError("two evaluations")
    trained = _trained(run)
    gaps = [(one["step"], float(one["eval_loss"]) - trained[one["step"]]) for one in run.evaluations
            if one["step"] in trained]  # fmt: skip
    if gaps and min(gap for _, gap in gaps) > GAP:
        yield Evidence(f"validation lies {gaps[0][1]:.4f} above the smoothed training loss at step {gaps[0][0]} and "
                       f"{gaps[-1][1]:.4f} at step {gaps[-1][0]}")  # fmt: skip


def _trained(run: RunRecord) -> dict[int, float]:
    return {one["step"]: float(one["loss_ema"]) for one in run.steps if "loss_ema" in one}


RULES = (
    TroubleRule(
        "TA01", "validation loss rises while training loss falls", Severity.WARNING,
        "The model learns the training texts by heart.",
        "Take the checkpoint of the lowest validation loss; add text, weight decay or dropout, or train shorter.",
        overfits,
    ),
    TroubleRule(
        "TA02", "validation loss far below training loss", Severity.WARNING,
        "The splits differ: validation texts are simpler or occur in the training text, the first "
        "train.eval_sequences rows are of a few documents only, or dropout is high.",
        "Raise train.eval_sequences or take the whole split; if the gap stays, remove duplicates and prepare the data "
        "again, with another --seed or with texts of the same kind held out (--validation).",
        below_training,
    ),
    TroubleRule(
        "TA03", "validation loss far above training loss all the time", Severity.WARNING,
        "The splits come from different sources, or evaluation differs from training: another mask, padding that "
        "counts, dropout left on.",
        "Evaluate the training split for once; if its loss is as high, the evaluation is wrong, else the data differ.",
        above_training,
    ),
    TroubleRule(
        "TA04", "validation loss far below training loss, over few documents", Severity.NOTE,
        "Documents are split by a hash of their names, and a few of them may be easier than the rest by chance.",
        "Prepare the data with a larger --validation-fraction, another --seed or more text, or name texts to hold out "
        "(--validation).",
        below_training_by_chance,
    ),
)  # fmt: skip
"""Rows of the trouble table."""
