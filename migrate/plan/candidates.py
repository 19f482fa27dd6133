"""`candidates`: every way to divide a job over its devices, and why the others are none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from mappings.errors import UserError
from mappings.holdings import check_trainable
from mappings.layout import ParallelLayout
from mappings.parallel_options import ULYSSES, ParallelOptions
from mappings.shards import check_cut
from migrate.plan.job import Choice, Job
from migrate.plan.shapes import ModelShapes

MICRO_BATCHES = (1, 2, 4, 8, 16)
VIRTUAL = (2, 3, 4, 6, 8)
LEAST_PART = 4096
"""Tokens of a sequence below which context-parallel ranks have too little to do while keys travel (assumption)."""


@dataclass
class Refusals:
    """How many candidates each reason ended, and one of them as an example."""

    counts: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)

    def add(self, reason: str, example: str) -> None:
        """One candidate."""
        self.counts[reason] += 1
        self.examples.setdefault(reason, example)


class Candidates:
    """Layouts of a model, without recompute policies.

    Divisibility is judged by the functions that `msmigrate check` and the runner use.

    Args:
        shapes: of the model.
        job: what is planned.
        zero3: whether stage 3 is looked at, which needs `train.jit: false`.
    """

    def __init__(self, shapes: ModelShapes, job: Job, *, zero3: bool = True) -> None:
        self.shapes, self.job, self.zero3 = shapes, job, zero3
        self.refused = Refusals()

    def __iter__(self) -> Iterator[Choice]:
        for tp in self._tensor_parallel():
            for cp in self._context_parallel(tp):
                for pp in divisors(self.job.devices // (tp * cp)):
                    if pp > self.shapes.layers:
                        self.refused.add("more stages than layers", f"pp={pp}")
                        continue
                    dp = self.job.devices // (tp * cp * pp)
                    if self.job.global_batch % dp:
                        self.refused.add("global batch is no multiple of dp", f"{self.job.global_batch} over dp={dp}")
                        continue
                    yield from self._with_rest(tp, cp, pp, dp)

    def _tensor_parallel(self) -> Iterator[int]:
        key_heads = self.shapes.dims.get("kv_heads", self.shapes.dims["heads"])
        for tp in divisors(self.job.devices):
            if tp > self.job.node_size:
                self.refused.add("tensor parallelism would leave the node", f"tp={tp}, node of {self.job.node_size}")
                continue
            if self.job.devices > self.job.node_size and self.job.node_size % tp:
                self.refused.add("tensor-parallel groups would straddle nodes", f"tp={tp}")
                continue
            layout = ParallelLayout(tp=tp)
            try:
                check_cut(self.shapes.family, self.shapes.config, layout)
                if tp > key_heads:
                    check_trainable(self.shapes.family, self.shapes.config, layout, self.shapes.spelling)
            except UserError as error:
                self.refused.add("tensor parallelism does not divide heads or rows", str(error))
                continue
            yield tp

    def _context_parallel(self, tp: int) -> Iterator[int]:
        for cp in divisors(self.job.devices // tp):
            if cp & (cp - 1):
                continue  # only powers of two divide lengths and rings evenly
            if cp > 1 and self.job.seq_length // cp < LEAST_PART:
                self.refused.add("sequences too short to share", f"cp={cp}, {self.job.seq_length} tokens")
                continue
            yield cp

    def _with_rest(self, tp: int, cp: int, pp: int, dp: int) -> Iterator[Choice]:
        for ep in self._expert_parallel(dp):
            for vpp, schedule in self._schedules(pp):
                for zero in self._zero(dp, pp):
                    layout = ParallelLayout(tp=tp, cp=cp, dp=dp, pp=pp, vpp=vpp, ep=ep, zero=zero)
                    for context in self._contexts(tp, cp):
                        yield from self._with_batch(layout, schedule, context)

    def _expert_parallel(self, dp: int) -> list[int]:
        if not self.shapes.experts:
            return [1]
        return [ep for ep in divisors(dp) if self.shapes.experts % ep == 0]

    def _schedules(self, pp: int) -> Iterator[tuple[int, str]]:
        yield 1, "1f1b"
        if pp == 1:
            return
        yield 1, "zero_bubble"
        yield from ((vpp, "interleaved") for vpp in VIRTUAL if self.shapes.layers % (pp * vpp) == 0)

    def _zero(self, dp: int, pp: int) -> list[int]:
        # Stage 0 sends as much as stage 1 and keeps more: it is never the better one.
        if dp == 1:
            return [0]
        return [1, 2, 3] if self.zero3 and pp == 1 else [1, 2]

    def _contexts(self, tp: int, cp: int) -> list[str]:
        heads = self.shapes.dims["heads"] // tp
        return ["ring", ULYSSES] if cp > 1 and heads % cp == 0 else ["ring"]

    def _with_batch(self, layout: ParallelLayout, schedule: str, context: str) -> Iterator[Choice]:
        for micro in MICRO_BATCHES:
            if self.job.global_batch % (layout.dp * micro):
                self.refused.add("global batch is no multiple of dp x micro-batch", f"dp={layout.dp}, {micro}")
                continue
            count = self.job.global_batch // (layout.dp * micro)
            if layout.pp > 1 and count < layout.pp:
                self.refused.add("fewer micro-batches than stages", f"{count} for pp={layout.pp}")
                continue
            if schedule == "interleaved" and count % layout.pp:
                self.refused.add("interleaved needs micro-batches that pp divides", f"{count} for pp={layout.pp}")
                continue
            sequence_parallel = self._divides(layout, context, sequence_parallel=layout.tp > 1)
            if sequence_parallel is None:
                self.refused.add("sequences do not divide over the ranks", f"{self.job.seq_length} over {layout}")
                continue
            yield Choice(layout, micro, count, "none", sequence_parallel, schedule, context)

    def _divides(self, layout: ParallelLayout, context: str, *, sequence_parallel: bool) -> bool | None:
        """Whether the sequence is shared between cut layers, too; None where it cannot even be shared over cp.

        With tensor parallelism it always is, where it can be: the same bytes cross, and less is kept.
        """
        try:
            options = ParallelOptions(sequence_parallel=sequence_parallel, context=context)
            options.check(self.shapes.family, self.shapes.config, layout, self.job.seq_length)
        except UserError:
            return self._divides(layout, context, sequence_parallel=False) if sequence_parallel else None
        return sequence_parallel


def divisors(number: int) -> list[int]:
    """All of them, ascending."""
    return [n for n in range(1, number + 1) if number % n == 0]
