"""`Rung`: a layout of the ladder, and `rungs_of`: the layouts of a run's ladder, one more axis on each."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from mappings.errors import UserError
from mappings.families import Family
from mappings.holdings import check_trainable
from mappings.layout import ParallelLayout

if TYPE_CHECKING:
    from ms_models.train.config import RunConfig

ORDER = ("dp", "tp", "pp", "cp")
"""Which axis a rung adds first. Axes that the run itself has come before the others."""
AGAIN = "1 again"


@dataclass(frozen=True)
class Rung:
    """One run of the ladder."""

    name: str
    layout: ParallelLayout
    added: str
    """The axis that the rung before does not have, or has smaller; empty on the first."""
    micro_batch_size: int
    accumulation: int
    sequence_parallel: bool = False
    schedule: str | None = None

    @property
    def ranks(self) -> int:
        """Processes."""
        return self.layout.world_size

    @property
    def directory(self) -> str:
        """Name of its directory."""
        return "rung_" + self.name.replace(" ", "_")

    def overrides(self) -> dict[str, Any]:
        """Fields of the run configuration that the rung sets."""
        return {
            "layout": self.layout.to_dict(),
            "parallel.sequence_parallel": self.sequence_parallel,
            "parallel.schedule": self.schedule,
            "train.micro_batch_size": self.micro_batch_size,
            "train.accumulation": self.accumulation,
        }


def rungs_of(
    config: RunConfig, family: Family | None, raw: Mapping[str, Any], sizes: Sequence[int]
) -> tuple[list[Rung], Rung]:
    """The rungs, and the first one again with its batch dealt out otherwise, whose distance from it is noise.

    Every rung has the global batch of the run.

    Args:
        config: of the run.
        family: of its model; None where it is converted code, whose layouts are judged when they start.
        raw: its `config.json`.
        sizes: ranks of each rung, ascending from 1, each a multiple of the one before by a power of two.

    Raises:
        UserError: sizes that are no ladder, or no axis that the model could be cut along.
    """
    _check(sizes)
    axes = {"dp": 1, "tp": 1, "pp": 1, "cp": 1}
    rungs = [_rung(config, "1", axes, "")]
    for ranks in sizes[1:]:
        added: list[str] = []
        while math.prod(axes.values()) < ranks:
            had = {name for rung in rungs for name in rung.added.split("+")} | set(added)
            axis = _next_axis(config, family, raw, axes, had)
            axes = {**axes, axis: axes[axis] * 2}
            added.append(axis)
        rungs.append(_rung(config, str(ranks), axes, "+".join(dict.fromkeys(added))))
    return rungs, _again(rungs[0])


def _check(sizes: Sequence[int]) -> None:
    fits = all(b > a and b % a == 0 and not (b // a) & (b // a - 1) for a, b in pairwise(sizes))
    if not sizes or sizes[0] != 1 or not fits:
        raise UserError(
            f"ladder: rungs must begin with 1 and grow by powers of two (1,2,4,8), found {','.join(map(str, sizes))}"
        )


def _next_axis(
    config: RunConfig, family: Family | None, raw: Mapping[str, Any], axes: Mapping[str, int], had: set[str]
) -> str:
    """An axis that no rung has added, one of the run's own before others; then dp again."""
    own = [axis for axis in ORDER if getattr(config.layout, axis) > 1]
    order = [axis for axis in (*own, *(a for a in ORDER[:3] if a not in own)) if axis not in had]
    problems = []
    for axis in (*order, "dp", "tp", "pp"):
        try:
            grown = {**axes, axis: axes[axis] * 2}
            rung = _rung(config, "?", grown, axis)
            if family is not None:
                check_trainable(family, raw, rung.layout)
            return axis
        except UserError as error:
            problems.append(f"{axis}: {error}")
    raise UserError(f"ladder: no axis left for {2 * math.prod(axes.values())} ranks; {'; '.join(problems)}")


def _rung(config: RunConfig, name: str, axes: Mapping[str, int], added: str) -> Rung:
    own, dp = config.layout, axes["dp"]
    zero = own.zero if dp > 1 else 0
    if zero == 3 and axes["pp"] > 1:
        zero = 2
    layout = ParallelLayout(
        **axes, zero=zero, ep=math.gcd(own.ep, dp), vocab_multiple=own.vocab_multiple,
    )  # fmt: skip
    micro, accumulation = _dealt(config.global_batch, config.train.micro_batch_size, layout)
    schedule = config.parallel.schedule if layout.pp > 1 and own.vpp == 1 else None
    return Rung(name, layout, added, micro, accumulation, config.parallel.sequence_parallel and layout.tp > 1, schedule)


def _dealt(global_batch: int, wanted: int, layout: ParallelLayout) -> tuple[int, int]:
    """Micro-batch and accumulation: the micro-batch of the run, or the largest that leaves each stage work.

    Raises:
        UserError: the global batch does not divide.
    """
    if global_batch % layout.dp:
        raise UserError(f"ladder: a global batch of {global_batch} does not divide over dp={layout.dp}")
    each = global_batch // layout.dp
    for micro in range(min(wanted, each), 0, -1):
        if each % micro == 0 and each // micro >= layout.pp:
            return micro, each // micro
    raise UserError(f"ladder: {each} sequences per replica are fewer than pp={layout.pp} stages")


def _again(first: Rung) -> Rung:
    """The first rung with micro-batches of another size, or the very same where a step is one sequence."""
    each = first.micro_batch_size * first.accumulation
    sizes = [size for size in range(1, each + 1) if each % size == 0 and size != first.micro_batch_size]
    nearest = min(sizes, key=lambda size: abs(size - first.micro_batch_size), default=first.micro_batch_size)
    return Rung(AGAIN, first.layout, "", nearest, each // nearest)
