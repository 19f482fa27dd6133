"""Bounds of numbers, written beside the fields they belong to."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import MISSING, field, fields, is_dataclass
from functools import partial
from typing import Any

from mappings.errors import UserError
from ms_models.train.config.problems import Problems


def number(
    default: Any = MISSING,
    *,
    least: float | None = None,
    most: float | None = None,
    above: float | None = None,
    below: float | None = None,
) -> Any:
    """A field of a dataclass whose value, or each value of a tuple, has bounds; None is never out of them.

    Args:
        default: as in `dataclasses.field`; the field is required without.
        least: smallest value.
        most: largest value.
        above: every value is larger.
        below: every value is smaller.
    """
    bounds = {"least": least, "most": most, "above": above, "below": below}
    return field(default=default, metadata={name: bound for name, bound in bounds.items() if bound is not None})


def check_bounds(section: Any, where: str = "") -> None:
    """Checks every number of a dataclass, and of those in it.

    Raises:
        UserError: names every field that is out of its bounds, the value and the bound, on one line.
    """
    problems = Problems()
    for item in fields(section):
        path, value = f"{where}.{item.name}" if where else item.name, getattr(section, item.name)
        for place, part in _parts(path, value):
            if is_dataclass(part):
                problems.attempt(partial(check_bounds, part, place))
            elif item.metadata and isinstance(part, int | float):
                problems.attempt(partial(_check, place, part, item.metadata.get))
    problems.check()


def _parts(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, tuple):
        yield from ((f"{path}[{index}]", part) for index, part in enumerate(value))
    else:
        yield path, value


def _check(path: str, value: float, bound: Any) -> None:
    texts = []
    if (least := bound("least")) is not None:
        texts.append((value >= least, f"at least {least:g}"))
    if (above := bound("above")) is not None:
        texts.append((value > above, f"above {above:g}"))
    if (most := bound("most")) is not None:
        texts.append((value <= most, f"at most {most:g}"))
    if (below := bound("below")) is not None:
        texts.append((value < below, f"below {below:g}"))
    if not all(holds for holds, _ in texts) or not math.isfinite(value):
        raise UserError(f"config: {path!r} must be {' and '.join(text for _, text in texts)}, found {value}")
