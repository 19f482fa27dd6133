"""`fully_shard`: the numbers of torch's sharded data parallel training, without its saving of memory.

Every rank keeps all parameters; they start as rank 0's, and gradients are averaged after the backward pass.
"""

from __future__ import annotations

from typing import Any, TypeVar

from mindspore import Tensor, nn

from .distributed import ProcessGroup, ReduceOp, all_reduce, broadcast, get_world_size
from .whole import refuse_replicas

CellT = TypeVar("CellT", bound=nn.Cell)


class FSDPModule:
    """What `fully_shard` adds to the class of a module; parameters are always whole, so most methods do nothing."""

    _synchronises = True

    def set_requires_gradient_sync(self, requires_gradient_sync: bool, *, recurse: bool = True) -> None:
        """Whether backward passes average the gradients; off, they accumulate locally."""
        cells = [cell for _, cell in self.cells_and_names()] if recurse else [self]  # type: ignore[attr-defined]
        for cell in cells:
            if isinstance(cell, FSDPModule):
                object.__setattr__(cell, "_synchronises", requires_gradient_sync)

    def set_modules_to_forward_prefetch(self, modules: Any) -> None:
        """Nothing is gathered, so nothing is prefetched."""

    def set_modules_to_backward_prefetch(self, modules: Any) -> None:
        """Nothing is gathered, so nothing is prefetched."""

    def unshard(self, async_op: bool = False) -> None:
        """Nothing is sharded."""

    def reshard(self) -> None:
        """Nothing is sharded."""


def fully_shard(module: CellT) -> CellT:
    """Average the gradients of a module's parameters over all ranks; the module also becomes an `FSDPModule`.

    Raises:
        ValueError: the process group is not initialised.
    """
    return synchronised(module, FSDPModule)


def synchronised(module: CellT, kind: type[FSDPModule], group: ProcessGroup | None = None) -> CellT:
    """Give a module equal parameters on all ranks, mean gradients, and one more class."""
    several = get_world_size(group) > 1
    refuse_replicas(module.get_parameters(), group.ranks if group else range(get_world_size()))

    def mean(gradient: Tensor) -> Tensor:
        if several and module._synchronises:
            all_reduce(gradient, ReduceOp.AVG, group)
        return gradient

    for parameter in module.get_parameters():
        if getattr(parameter, "after_backward", None) is None:  # parts that were given before keep their own setting
            if several:
                broadcast(parameter, group.ranks[0] if group else 0, group)
            parameter.after_backward = mean
    own = type(module)
    module.__class__ = type(f"FSDP{own.__name__}", (kind, own), {})
    return module
