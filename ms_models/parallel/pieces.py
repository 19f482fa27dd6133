"""`Piece`: what one rank holds of a parameter that everyone else draws, loads and saves as a whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, ops

from ms_models.parallel.collectives import all_reduce, gather_from_group
from ms_models.parallel.mesh import Group


@dataclass(frozen=True)
class Piece:
    """An equal share of each part of a parameter along one axis.

    A fused weight has several parts (q, k and v): a rank holds its share of each of them, in their order. The last
    share of a padded axis ends with zeros.
    """

    shape: tuple[int, ...]
    """Of the whole parameter, without padding."""
    axis: int
    group: Group
    parts: tuple[int, ...]
    """Lengths along the axis; they add up to it. Only a single part may need padding."""

    @property
    def local_shape(self) -> tuple[int, ...]:
        """Shape of what a rank holds; the same on all ranks."""
        shape = list(self.shape)
        shape[self.axis] = sum(self._shares())
        return tuple(shape)

    def take(self, whole: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """This rank's share of the whole values."""
        found, start = [], 0
        for part, share in zip(self.parts, self._shares(), strict=True):
            first = min(self.group.index * share, part)
            last = min(first + share, part)
            found.append(self._between(whole, start + first, start + last))
            start += part
        return self._filled(np.concatenate(found, self.axis))

    def join(self, pieces: Sequence[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
        """The whole from what every rank holds, in the order of the group."""
        found, start = [], 0
        for part, share in zip(self.parts, self._shares(), strict=True):
            whole = np.concatenate([self._between(piece, start, start + share) for piece in pieces], self.axis)
            found.append(self._between(whole, 0, part))
            start += share
        return np.concatenate(found, self.axis)

    def whole(self, local: Tensor) -> Tensor:
        """The whole from this rank's share of a tensor that is laid out like the parameter. Every rank must call it."""
        if self.group.size == 1:
            return local
        wide = local.astype(ms.float32) if local.dtype == ms.bfloat16 else local  # numpy knows no bf16
        pieces = np.split(gather_from_group(wide, self.group, self.axis).asnumpy(), self.group.size, self.axis)
        return Tensor(self.join(pieces)).astype(local.dtype)

    def _shares(self) -> list[int]:
        return [-(-part // self.group.size) for part in self.parts]

    def _between(self, values: np.ndarray[Any, Any], start: int, stop: int) -> np.ndarray[Any, Any]:
        return values[(slice(None),) * self.axis + (slice(start, stop),)]

    def _filled(self, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        missing = self.local_shape[self.axis] - values.shape[self.axis]
        widths = [(0, missing if axis == self.axis else 0) for axis in range(values.ndim)]
        return np.pad(values, widths) if missing else values


@dataclass(frozen=True)
class Combine:
    """How a norm over gradients adds what the other ranks hold."""

    group: Group

    def __call__(self, value: Tensor, largest: bool) -> Tensor:
        if largest:
            return gather_from_group(value.reshape(1), self.group, 0).max()
        return all_reduce(value.reshape(1), self.group).reshape(())


def cut_parameter(piece: Piece, dtype: Any = None) -> Parameter:
    """A parameter of zeros that holds a share; `piece` tells initialisers, checkpoints and norms about the whole."""
    made = Parameter(ops.zeros(piece.local_shape, ms.float32 if dtype is None else dtype))
    made.piece = piece
    if piece.group.size > 1:
        made.combine_shards = Combine(piece.group)
    return made
