"""`ParallelOptions`: how ranks work together, where that leaves no trace in a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mappings.errors import UserError
from mappings.families import Family
from mappings.layout import ParallelLayout

RING, ULYSSES = "ring", "ulysses"
CONTEXTS = (RING, ULYSSES)
RECOMPUTE = ("none", "attention", "block", "full")
SCHEDULES = ("gpipe", "1f1b", "interleaved", "zero_bubble")
MICRO_BATCHES_PER_STAGE = 4
"""From here on the idle part of a 1F1B pipeline, (pp - 1) / micro-batches, is below a quarter."""


@dataclass(frozen=True)
class ParallelOptions:
    """Choices beside the layout."""

    sequence_parallel: bool = False
    """Between the layers that tensor parallelism cuts, each tp rank has a part of the sequence."""
    context: str = RING
    """How attention crosses the context-parallel ranks: one of `CONTEXTS`."""
    recompute: str = "none"
    """What the backward pass computes again instead of keeping it: one of `RECOMPUTE`."""
    schedule: str | None = None
    """Order of the pipeline's work, one of `SCHEDULES`; None is 1f1b, or interleaved where vpp is above 1."""
    bucket_mib: float = 32.0
    """Size of the fp32 buffers in which gradients cross the ranks, in MiB: fewer calls, more memory for copies."""

    def __post_init__(self) -> None:
        known = {"context": CONTEXTS, "recompute": RECOMPUTE, "schedule": (None, *SCHEDULES)}
        for name, values in known.items():
            if getattr(self, name) not in values:
                names = ", ".join(value for value in values if value is not None)
                raise UserError(f"parallel: {name} must be one of {names}, found {getattr(self, name)!r}")
        if not 0 < self.bucket_mib <= 4096:
            raise UserError(f"parallel: bucket_mib must be above 0 and at most 4096, found {self.bucket_mib}")

    @property
    def bucket_elements(self) -> int:
        """fp32 numbers in such a buffer."""
        return max(1, round(self.bucket_mib * (1 << 18)))

    def schedule_for(self, layout: ParallelLayout) -> str:
        """The pipeline's schedule."""
        return self.schedule or ("interleaved" if layout.vpp > 1 else "1f1b")

    def check(self, family: Family, config: Mapping[str, Any], layout: ParallelLayout, length: int) -> None:
        """Refuses sequences and heads that the ranks cannot share, before any process starts.

        Args:
            family: of the model.
            config: its `config.json`.
            layout: of the run.
            length: tokens per sequence.

        Raises:
            UserError: names the sizes that clash and a size that would fit.
        """
        if self.sequence_parallel and layout.tp == 1:
            raise UserError("parallel: sequence_parallel divides sequences over tp, which is 1; leave it out")
        chunks = 1 if layout.cp == 1 else layout.cp * (2 if self.context == RING else 1)
        parts = chunks * (layout.tp if self.sequence_parallel else 1)
        if length % parts:
            why = f"cp={layout.cp}" + (f" with sequence parallelism over tp={layout.tp}" if parts > chunks else "")
            raise UserError(
                f"parallel: {why} needs a sequence length that {parts} divides, found {length}; "
                f"{-(-length // parts) * parts} would fit"
            )
        heads = family.dims(config)["heads"] // layout.tp
        if layout.cp > 1 and self.context == ULYSSES and heads % layout.cp:
            raise UserError(
                f"parallel: context ulysses needs query heads per tensor-parallel rank that cp={layout.cp} divides, "
                f"found {heads}; context ring takes any number"
            )
