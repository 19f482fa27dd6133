"""C6: the layout of a run fits the model."""

from __future__ import annotations

from collections.abc import Iterator

from mappings.errors import UserError
from mappings.holdings import check_trainable
from mappings.layout import ParallelLayout
from mappings.shards import check_cut, padded_rows
from migrate.check.codes import finding
from migrate.check.subject import Subject
from migrate.check.tally import Tally
from migrate.report import Finding


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
    for parameter in subject.family.parameters(subject.config):
        if parameter.cut is not None and parameter.padded:
            tally.add()
            rows, padded = parameter.shape[parameter.cut], padded_rows(parameter, layout)
            if padded != rows:
                message = f"{parameter.name}: {rows} rows are padded to {padded} for {layout}"
                yield finding("C603", message, tensor=parameter.name)


def _layout(subject: Subject) -> ParallelLayout | Finding:
    values = (subject.run or {}).get("layout") or {}
    if not isinstance(values, dict):
        return finding("C602", f"layout must map axes to sizes, found {values!r}", field="layout")
    try:
        return ParallelLayout.from_dict(values)
    except UserError as error:
        return finding("C602", str(error), field="layout")


ASSERTIONS = (layout_fits_model,)
