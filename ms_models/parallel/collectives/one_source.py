"""One member's tensor for the others: `Broadcast` and `Transfer`. Neither has a gradient."""

from __future__ import annotations

from typing import Any

from mindspore import Tensor, nn, ops

from ms_models.parallel.collectives.all_reduce import AllReduce, nothing
from ms_models.parallel.collectives.device import chosen, require_carried
from ms_models.parallel.mesh import Group


class Broadcast(nn.Cell):
    """The tensor of one member (`source` is an index within the group), on every member. Has no gradient.

    The others pass a tensor of the same shape and dtype; its values do not matter.
    """

    def __init__(self, group: Group, source: int = 0, native: bool | None = None) -> None:
        super().__init__(auto_prefix=False)
        assert 0 <= source < group.size, f"source {source} is outside a group of {group.size}"
        self.size = group.size
        self.is_source = group.index == source
        self.native = chosen(native)
        # The operator's root is an index within its group, whatever its documentation says: MindSpore's own
        # communication functions convert a rank of the world before they make it.
        self.send: Any = ops.Broadcast(source, group.name) if self.native and group.size > 1 else None
        self.all_reduce = AllReduce(group, self.native)

    def construct(self, x: Tensor) -> Tensor:
        if self.native and self.size > 1:
            require_carried(x)
            return ops.stop_gradient(self.send((x,))[0])
        # What a receiver adds is a constant; tied to x, it is not added before x is there. Under ms.jit the call could
        # otherwise be made in another order than on the source.
        return ops.stop_gradient(self.all_reduce(x if self.is_source else ops.depend(nothing(x), x)))


class Transfer(nn.Cell):
    """The tensor of member `source` arrives at member `destination`; every other gets back what it passed.

    All members call it: all but the source pass a tensor of the shape and dtype that travels, whose values do not
    matter. It is a broadcast, which is a plain send in a group of two; make pairs where traffic counts. Use the result
    on the source as well: under `ms.jit` a call whose result nobody needs is not made, and the others wait for it.

    Args:
        group: two ranks or more.
        source: index within the group.
        destination: index within the group, another one.
    """

    def __init__(self, group: Group, source: int, destination: int, native: bool | None = None) -> None:
        super().__init__(auto_prefix=False)
        assert 0 <= destination < group.size, f"destination {destination} is outside a group of {group.size}"
        assert source != destination, f"transfer from {source} to itself"
        self.receives = group.index == destination
        self.broadcast = Broadcast(group, source, native)

    def construct(self, x: Tensor) -> Tensor:
        arrived = self.broadcast(x)
        return arrived if self.receives else ops.depend(ops.stop_gradient(x), arrived)
