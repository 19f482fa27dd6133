"""Tensors that change places: `AllToAll` and `Shift`."""

from __future__ import annotations

from typing import Any

from mindspore import Tensor, nn, ops

from ms_models.parallel.collectives.device import chosen, require_carried, share
from ms_models.parallel.collectives.stack import Stack
from ms_models.parallel.mesh import Group


def _operator(group: Group, native: bool) -> Any:
    """AlltoAllV takes flat tensors and how many elements go to, and come from, each member."""
    return ops.AlltoAllV(group.name) if native and group.size > 1 else None


class _AllToAll(nn.Cell):
    def __init__(self, group: Group, split_axis: int, concat_axis: int, native: bool | None) -> None:
        super().__init__(auto_prefix=False)
        self.size = group.size
        self.index = group.index
        self.split_axis = split_axis
        self.concat_axis = concat_axis
        self.native = chosen(native)
        self.exchange: Any = _operator(group, self.native)
        self.stack = Stack(group, self.native)

    def construct(self, x: Tensor) -> Tensor:
        if self.size == 1:
            return x
        length = share(x, self.split_axis, self.size)
        if self.native:
            require_carried(x)
            blocks = ops.split(x, length, self.split_axis)
            shape, count = blocks[0].shape, x.size // self.size
            counts = (count,) * self.size
            received = self.exchange(ops.concat([block.reshape(-1) for block in blocks], 0), counts, counts)
            mine = [block.reshape(shape) for block in ops.split(received, count, 0)]
        else:
            whole = ops.split(self.stack(x), length, self.split_axis + 1)[self.index]
            mine = [whole[i] for i in range(self.size)]
        return ops.concat(mine, self.concat_axis)


class AllToAll(nn.Cell):
    """Block j of a tensor along `split_axis` goes to rank j, which joins what it gets along `concat_axis`.

    `[.., s, .., c, ..]` becomes `[.., s / size, .., c * size, ..]`. The gradient takes the way back. Both axes >= 0.

    Raises:
        ValueError: when called: the ranks do not divide the split axis.
    """

    def __init__(self, group: Group, split_axis: int, concat_axis: int, native: bool | None = None) -> None:
        super().__init__(auto_prefix=False)
        self.there = _AllToAll(group, split_axis, concat_axis, native)
        self.back = _AllToAll(group, concat_axis, split_axis, native)

    def construct(self, x: Tensor) -> Tensor:
        return self.there(x)

    def bprop(self, x: Tensor, out: Tensor, dout: Tensor) -> tuple[Tensor]:
        return (self.back(dout),)


class _Shift(nn.Cell):
    def __init__(self, group: Group, steps: int, native: bool | None) -> None:
        super().__init__(auto_prefix=False)
        self.size = group.size
        self.stays = steps % group.size == 0
        self.source = (group.index - steps) % group.size
        self.target = (group.index + steps) % group.size
        self.native = chosen(native)
        self.exchange: Any = _operator(group, self.native)
        self.stack = Stack(group, self.native)

    def construct(self, x: Tensor) -> Tensor:
        if self.stays:
            return x
        if not self.native:
            return self.stack(x)[self.source]
        require_carried(x)
        to = [x.size if i == self.target else 0 for i in range(self.size)]
        come = [x.size if i == self.source else 0 for i in range(self.size)]
        return self.exchange(x.reshape(-1), tuple(to), tuple(come)).reshape(x.shape)


class Shift(nn.Cell):
    """The tensor of rank i goes to rank `i + steps`, around the end of the group; the gradient goes back.

    All members pass the same shape.
    """

    def __init__(self, group: Group, steps: int, native: bool | None = None) -> None:
        super().__init__(auto_prefix=False)
        self.there = _Shift(group, steps, native)
        self.back = _Shift(group, -steps, native)

    def construct(self, x: Tensor) -> Tensor:
        return self.there(x)

    def bprop(self, x: Tensor, out: Tensor, dout: Tensor) -> tuple[Tensor]:
        return (self.back(dout),)
