"""Layouts with less in them than a given one, to tell which part of it a fault belongs to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mappings.layout import AXES, ParallelLayout
from mappings.parallel_options import ParallelOptions
from migrate.parity.layouts.request import Request

WITH: Mapping[str, tuple[str, ...]] = {
    "tp": ("sequence_parallel", "vocab_multiple"),
    "cp": (),
    "dp": ("ep", "zero"),
    "pp": ("vpp", "schedule"),
}
"""What belongs to an axis, and means nothing without it."""
TOGETHER = {"schedule": "vpp"}
"""An interleaved schedule is one of several chunks per stage."""


def smaller(request: Request) -> list[Request]:
    """Each axis alone, then with each setting that belongs to it; the simplest first, the given layout left out.

    All of them can share the batch of the given one.

    Args:
        request: the whole layout.
    """
    layout, options = request.layout, request.options
    found: list[Request] = []
    if options.recompute != ParallelOptions().recompute:
        found.append(Request(ParallelLayout(), ParallelOptions(recompute=options.recompute)))
    for axis in AXES:
        size = getattr(layout, axis)
        if size == 1:
            continue
        # A ring divides sequences into twice as many parts, which the batch may not have.
        how = ParallelOptions(context=options.context) if axis == "cp" else ParallelOptions()
        alone = Request(ParallelLayout(**{axis: size}), how)
        found.append(alone)
        for name in WITH[axis]:
            names = {name, TOGETHER.get(name, name)}
            one = Request(
                replace(alone.layout, **_changed(layout, names)), replace(alone.options, **_changed(options, names))
            )
            found += [] if one in found else [one]
    return [one for one in found if one != request]


def _changed(settings: ParallelLayout | ParallelOptions, names: set[str]) -> dict[str, Any]:
    """Those of `names` that the settings have, and have another value for than by default."""
    defaults = type(settings)()
    held = [name for name in names if hasattr(settings, name)]
    return {name: getattr(settings, name) for name in held if getattr(settings, name) != getattr(defaults, name)}
