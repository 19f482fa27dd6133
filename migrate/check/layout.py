"""C6: the layout of a run fits the model."""

from __future__ import annotations

from collections.abc import Iterator

from mappings.errors import UserError
from mappings.holdings import check_trainable
from mappings.layout import ParallelLayout
from mappings.parallel_options import MICRO_BATCHES_PER_STAGE, ParallelOptions
from mappings.shards import check_cut, padded_rows
from migrate.check.codes import finding
from migrate.check.subject import Subject
from migrate.check.tally import Tally
from migrate.report import Finding

CHOICES = ("sequence_parallel", "context")


def layout_fits_model(subject: Subject, tally: Tally) -> Iterator[Finding]:
    """Heads, rows and layers divide as the layout asks, and this version supports its axes."""
    if subject.run is None or subject.family is None:
        return
    tally.add()
    layout = _layout(subject)
    if isinstance(layout, Finding):
        yield layout
        return
    try:
        check_cut(subject.family, subject.config, layout)
    except UserError as error:
        yield finding("C601", str(error), field="layout")
        return
    try:
        check_trainable(subject.family, subject.config, layout)
    except UserError as error:
        yield finding("C604", str(error), field="layout")
        return
    for parameter in subject.parameters:
        if parameter.cut is not None and parameter.padded:
            tally.add()
            rows, padded = parameter.shape[parameter.cut], padded_rows(parameter, layout)
            if padded != rows:
                message = f"{parameter.name}: {rows} rows are padded to {padded} for {layout}"
                yield finding("C603", message, tensor=parameter.name)


def sequences_can_be_shared(subject: Subject, tally: Tally) -> Iterator[Finding]:
    """The ranks can share the sequences, as `parallel` asks."""
    layout, length = _layout(subject), subject.section("data").get("seq_length")
    if subject.run is None or subject.family is None or isinstance(layout, Finding) or type(length) is not int:
        return
    options = {name: value for name, value in subject.section("parallel").items() if name in CHOICES}
    tally.add()
    try:
        ParallelOptions(**options).check(subject.family, subject.config, layout, length)
    except (UserError, TypeError) as error:
        yield finding("C601", str(error), file=_run_name(subject), field="parallel")


def pipeline_is_kept_busy(subject: Subject, tally: Tally) -> Iterator[Finding]:
    """At least four micro-batches for each pipeline stage."""
    layout, batches = _layout(subject), subject.section("train").get("accumulation", 1)
    if isinstance(layout, Finding) or layout.pp == 1 or type(batches) is not int or not subject.section("train"):
        return
    tally.add()
    if batches < (least := MICRO_BATCHES_PER_STAGE * layout.pp):
        message = f"train.accumulation is {batches} for pp={layout.pp} stages; {least} to {2 * least} keep them busy"
        yield finding("C607", message, file=_run_name(subject), field="train.accumulation")


def tensor_parallel_stays_in_a_node(subject: Subject, tally: Tally) -> Iterator[Finding]:
    """The tensor-parallel ranks of a layer are on one machine."""
    layout, nodes = _layout(subject), subject.section("launch").get("nodes", 1)
    if isinstance(layout, Finding) or type(nodes) is not int or nodes < 2 or layout.tp == 1:
        return
    tally.add()
    if (layout.world_size // nodes) % layout.tp:
        message = f"tp={layout.tp} over machines of {layout.world_size / nodes:g} ranks (launch.nodes {nodes})"
        yield finding("C607", message, file=_run_name(subject), field="layout.tp")


def _run_name(subject: Subject) -> str | None:
    return subject.run_path.name if subject.run_path is not None else None


def _layout(subject: Subject) -> ParallelLayout | Finding:
    values = (subject.run or {}).get("layout") or {}
    if not isinstance(values, dict):
        return finding("C602", f"layout must map axes to sizes, found {values!r}", field="layout")
    try:
        return ParallelLayout.from_dict(values)
    except UserError as error:
        return finding("C602", str(error), field="layout")


ASSERTIONS = (layout_fits_model, sequences_can_be_shared, pipeline_is_kept_busy, tensor_parallel_stays_in_a_node)
