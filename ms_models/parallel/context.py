"""`ContextPlace`: which positions of a sequence a context-parallel rank holds.

A sequence of length S is cut into equal chunks. How they are dealt out depends on how attention crosses the ranks:

| context | chunks | rank r of n holds | why |
|---|---|---|---|
| `ring` | 2n | r and 2n - 1 - r | late positions see more than early ones; every pair sees the same |
| `ulysses` | n | r | the ranks exchange heads for positions, so each does the same work |
"""

from __future__ import annotations

from dataclasses import dataclass

from mindspore import Tensor, ops

from mappings.errors import UserError
from mappings.parallel_options import RING, ULYSSES
from ms_models.parallel.mesh import Group


def chunk_length(length: int, chunks: int, ranks: int) -> int:
    """The length of one of `chunks` equal chunks of a sequence.

    Raises:
        UserError: the sequence cannot be cut so.
    """
    if length % chunks:
        raise UserError(
            f"context parallel: sequence length {length} over cp={ranks} must be a multiple of {chunks}; "
            f"{-(-length // chunks) * chunks} would do"
        )
    return length // chunks


_chunk_length = ops.constexpr(chunk_length)  # raises the same way while ms.jit compiles


@dataclass(frozen=True)
class ContextPlace:
    """One rank's part of every sequence.

    Everything but `check_heads` may be called in a compiled function; lengths are known there.
    """

    group: Group
    """The context-parallel ranks."""
    context: str = RING
    """How attention crosses them: `ring` or `ulysses`."""

    def __post_init__(self) -> None:
        if self.context not in (RING, ULYSSES):
            raise UserError(f"context parallel: {self.context!r} is unknown; ring and ulysses are known")

    @property
    def chunks(self) -> int:
        """How many chunks a sequence has."""
        return 2 * self.group.size if self.context == RING else self.group.size

    def held_by(self, rank: int) -> tuple[int, ...]:
        """The chunks that a rank of the group holds, ascending."""
        if self.context == RING:
            return (rank, 2 * self.group.size - 1 - rank)
        return (rank,)

    def local_length(self, length: int) -> int:
        """How many positions of a sequence of `length` a rank holds.

        Raises:
            UserError: the ranks cannot share the sequence evenly.
        """
        return _chunk_length(length, self.chunks, self.group.size) * (self.chunks // self.group.size)

    def local(self, x: Tensor, axis: int) -> Tensor:
        """What this rank holds of a tensor whose `axis` (>= 0) is the whole sequence.

        Raises:
            UserError: the ranks cannot share the sequence evenly.
        """
        return self.part_of(x, axis, self.group.index)

    def part_of(self, x: Tensor, axis: int, rank: int) -> Tensor:
        """The same for another rank of the group."""
        if self.group.size == 1:
            return x
        parts = ops.split(x, _chunk_length(x.shape[axis], self.chunks, self.group.size), axis)
        held = [parts[chunk] for chunk in self.held_by(rank)]
        return held[0] if len(held) == 1 else ops.concat(held, axis)

    def positions(self, length: int) -> Tensor:
        """`[S / n]` int64: where this rank's positions are in a sequence of `length`, ascending.

        Raises:
            UserError: the ranks cannot share the sequence evenly.
        """
        return self.local(ops.arange(length), 0)

    def check_heads(self, heads: int) -> None:
        """Refuses attention that cannot cross the ranks.

        Args:
            heads: query heads per tensor-parallel rank. Key heads may have any number that divides these.

        Raises:
            UserError: `ulysses`, and the ranks do not divide the heads.
        """
        if self.context == ULYSSES and heads % self.group.size:
            raise UserError(
                f"context parallel: ulysses over cp={self.group.size} needs as many query heads per tensor-parallel "
                f"rank, or a multiple, found {heads}; context: ring takes any number"
            )
