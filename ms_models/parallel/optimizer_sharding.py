"""`OptimizerSharding`: what of gradients and optimizer states a rank keeps, in flat buckets (ZeRO, arXiv 1910.02054).

The replicas of a parameter divide its rows as `mappings/rank_cuts.py` says: axis 0 padded with zeros to a multiple of
the replicas (dp; dp / ep for experts), equal consecutive runs, scalars whole; context-parallel ranks hold copies.
Without ZeRO every replica keeps everything, which is the same with one share.

Parameters that are summed over the same ranks and treated alike by the optimizer lie one behind the other in a bucket,
so that a step is a few operations and a few collectives, however many parameters there are. A whole bucket is
`[shares, width]`, a row for each replica; what a rank keeps of it is `[width]`.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops

from mappings.holdings import Held
from ms_models.parallel.collectives import AllReduce, GatherFromGroup, ReduceScatterToGroup
from ms_models.parallel.mesh import Group, Mesh

BUCKET_ELEMENTS = 8 << 20
"""Elements per collective: large enough to hide latency, small enough that flat copies are no second model."""


@dataclass(frozen=True)
class Together:
    """What the parameters of one bucket have in common."""

    cut: Group
    """Replicas that divide the states among them; a group of one where each keeps all."""
    copies: Group
    """Further ranks whose gradients belong to the same sum."""
    ends: Group | None
    """The other end of the pipeline, for a table that is read at the first stage and written with at the last."""
    is_first_copy: bool
    """Whether no tensor-parallel rank before this one holds the same. It is told apart on every rank, whether that
    counts or not: the ranks of a collective must have the same buckets."""
    is_counted: bool
    """Whether what this rank keeps is counted here in sums over the model, rather than on another rank."""
    label: Hashable
    """What the caller tells parameters apart by."""


class Bucket(nn.Cell):
    """Some parameters as one flat buffer. Its methods may be called under `ms.jit`."""

    def __init__(self, parameters: Sequence[Parameter], indices: Sequence[int], together: Together) -> None:
        super().__init__(auto_prefix=False)
        self.indices = tuple(indices)
        """Places among the parameters of the model."""
        self.names = tuple(parameters[index].name for index in indices)
        self.shapes = tuple(tuple(parameters[index].shape) for index in indices)
        self.together = together
        self.is_counted = together.is_counted
        self.shares, self.index = together.cut.size, together.cut.index
        self.rows = tuple(-(-shape[0] // self.shares) if shape else 1 for shape in self.shapes)
        """Of each share of a parameter."""
        self.kept_shapes = tuple((r, *s[1:]) if s else () for r, s in zip(self.rows, self.shapes, strict=True))
        """What a rank keeps of each parameter, padding included."""
        self.kept_sizes = tuple(math.prod(shape) for shape in self.kept_shapes)
        self.width = sum(self.kept_sizes)
        self.padding = tuple(r * self.shares - (s[0] if s else 1) for r, s in zip(self.rows, self.shapes, strict=True))
        self.sum_shares = ReduceScatterToGroup(together.cut, 0)
        self.gather_shares = GatherFromGroup(together.cut, 0)
        self.sum_copies = AllReduce(together.copies)
        self.sum_ends: Any = None if together.ends is None else AllReduce(together.ends)

    def flat(self, tensors: Sequence[Tensor]) -> Tensor:
        """`[shares, width]`, fp32, of tensors in the shapes of the parameters."""
        rows = []
        for place, tensor in enumerate(tensors):
            rows.append(self.padded(tensor.astype(ms.float32), place).reshape(self.shares, -1))
        return ops.concat(rows, 1)

    def kept(self, tensors: Sequence[Tensor]) -> Tensor:
        """`[width]`, fp32: this rank's rows of the parameters."""
        parts = []
        for place, tensor in enumerate(tensors):
            first = self.index * self.rows[place]
            whole = self.padded(tensor.astype(ms.float32), place)
            parts.append((whole if self.shares == 1 else whole[first : first + self.rows[place]]).reshape(-1))
        return ops.concat(parts, 0)

    def padded(self, tensor: Tensor, place: int) -> Tensor:
        """With the rows of zeros that make the shares equal."""
        if self.padding[place] == 0:
            return tensor
        return ops.concat((tensor, ops.zeros((self.padding[place], *tensor.shape[1:]), tensor.dtype)), 0)

    def scatter(self, flat: Tensor) -> Tensor:
        """`[width]`: the sum of `[shares, width]` over the replicas that divide it, this rank's row."""
        return self.sum_shares(flat).reshape(-1)

    def finish(self, kept: Tensor) -> Tensor:
        """The sum over every other rank that has a part in it."""
        total = self.sum_copies(kept)
        return total if self.sum_ends is None else self.sum_ends(total)

    def gather(self, kept: Tensor) -> Tensor:
        """`[shares, width]` of what each replica keeps."""
        return self.gather_shares(kept.reshape(1, -1))

    def split(self, flat: Tensor) -> list[Tensor]:
        """Tensors in the shapes of the parameters, without padding."""
        pieces = []
        for place, piece in enumerate(ops.split(flat, self.kept_sizes, 1)):
            shape = self.shapes[place]
            if self.padding[place] > 0:
                piece = piece.reshape(self.shares * self.rows[place], *shape[1:])[: shape[0]]
            pieces.append(piece.reshape(shape))
        return pieces

    def named(self, kept: np.ndarray[Any, Any]) -> dict[str, np.ndarray[Any, Any]]:
        """What a rank keeps, `[width]`, by parameter name."""
        parts = np.split(kept, np.cumsum(self.kept_sizes)[:-1])
        return {n: p.reshape(s) for n, p, s in zip(self.names, parts, self.kept_shapes, strict=True)}


class OptimizerSharding:
    """The buckets of a model.

    Args:
        parameters: of this rank.
        held: what they are, by name.
        mesh: of the run; its layout says whether and how replicas divide the work.
        labels: one for each parameter; only parameters with equal ones share a bucket.
        bucket_elements: of the largest bucket of several parameters; None for `BUCKET_ELEMENTS`.

    Attributes:
        buckets: as Cells.
        keeps_gradients: whether a rank adds up whole gradients, and sums over replicas once a step.
    """

    def __init__(
        self,
        parameters: Sequence[Parameter],
        held: Mapping[str, Held],
        mesh: Mesh,
        labels: Sequence[Hashable],
        bucket_elements: int | None = None,
    ) -> None:
        self.parameters = ParameterTuple(list(parameters))
        self.mesh = mesh
        self.keeps_gradients = mesh.layout.zero < 2
        alike: dict[Together, list[int]] = {}
        for index, parameter in enumerate(parameters):
            together = _together(held[parameter.name], tuple(parameter.shape), mesh, labels[index])
            alike.setdefault(together, []).append(index)
        sizes = [parameter.size for parameter in parameters]
        self.buckets = nn.CellList(
            [
                Bucket(parameters, indices, together)
                for together, members in alike.items()
                for indices in _filled(members, sizes, bucket_elements or BUCKET_ELEMENTS)
            ],
            auto_prefix=False,
        )

    def collectives(self, micro_batches: int) -> int:
        """Calls over ranks that carry gradients and updated parameters in a step, on this rank.

        Parameters that are divided (ZeRO 3) and are gathered layer by layer are not counted.
        """
        count = 0
        for bucket in self.buckets:
            shared = bucket.shares > 1
            count += shared * (1 if self.keeps_gradients else micro_batches)
            count += (bucket.together.copies.size > 1) + (bucket.sum_ends is not None)
            count += shared and self.mesh.layout.zero < 3
        return count

    def states(self, name: str) -> ParameterTuple:
        """A buffer of zeros for each bucket, `[width]`."""
        return _zeros(name, [(bucket.width,) for bucket in self.buckets])

    def accumulators(self, name: str) -> ParameterTuple:
        """A buffer of zeros for the gradients of each bucket, `[shares, width]` or `[1, width]`."""
        return _zeros(name, [(b.shares if self.keeps_gradients else 1, b.width) for b in self.buckets])

    def whole(self, kept: Sequence[Tensor]) -> dict[str, np.ndarray[Any, Any]]:
        """By parameter name what the ranks keep of each bucket, put together. All that divide it must call this."""
        return {
            name: piece.asnumpy().copy()
            for bucket, one in zip(self.buckets, kept, strict=True)
            for name, piece in zip(bucket.names, bucket.split(bucket.gather(one)), strict=True)
        }


def _zeros(name: str, shapes: Sequence[tuple[int, ...]]) -> ParameterTuple:
    zeros = [Tensor(np.zeros(shape, np.float32)) for shape in shapes]
    return ParameterTuple([Parameter(zero, name=f"{name}.{number}") for number, zero in enumerate(zeros)])


def _together(held: Held, shape: tuple[int, ...], mesh: Mesh, label: Hashable) -> Together:
    layout, here = mesh.layout, mesh.coordinates
    axis = "edp" if held.is_expert and layout.ep > 1 else "dp"
    replicas = mesh.group(axis)
    is_cut = layout.zero > 0 and bool(shape)
    alone = Group(None, (mesh.rank,), 0)
    # The first of the ranks that keep the same counts it: replicas that divide it keep something else each.
    is_first_copy = here["tp"] == held.copies[0]
    is_first = is_first_copy and not here["cp"] and not (held.is_at_both_ends and here["pp"])
    return Together(
        replicas if is_cut else alone,
        mesh.group("cp") if is_cut else mesh.group(axis, "cp"),
        mesh.ends() if held.is_at_both_ends else None,
        is_first_copy,
        is_first and (is_cut or replicas.index == 0),
        label,
    )


def _filled(indices: Sequence[int], sizes: Sequence[int], most: int) -> Iterator[list[int]]:
    """Runs of parameters of up to `most` elements; a larger parameter is on its own."""
    bucket: list[int] = []
    filled = 0
    for index in indices:
        if bucket and filled + sizes[index] > most:
            yield bucket
            bucket, filled = [], 0
        bucket.append(index)
        filled += sizes[index]
    yield bucket
