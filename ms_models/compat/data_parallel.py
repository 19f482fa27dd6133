"""`DistributedDataParallel`: every rank starts equal and gets the mean of all gradients; and `DataParallel` of one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from mindspore import Tensor, nn

from .distributed import ProcessGroup, ReduceOp, all_reduce, broadcast, get_world_size
from .module import Module
from .whole import refuse_replicas


class DistributedDataParallel(Module):
    """Wraps a module; `backward.backward_of` gives each parameter's accumulated gradient to `_mean` afterwards.

    Gradients are averaged after the backward pass, one parameter at a time: what torch computes, without its overlap
    of communication and computation.
    """

    def __init__(
        self, module: nn.Cell, process_group: ProcessGroup | None = None, broadcast_buffers: bool = True
    ) -> None:
        super().__init__()
        self.module = module
        self.process_group = process_group
        self.broadcast_buffers = broadcast_buffers
        self.require_backward_grad_sync = True
        several = get_world_size(process_group) > 1
        refuse_replicas(module.get_parameters(), process_group.ranks if process_group else range(get_world_size()))
        source = process_group.ranks[0] if process_group else 0
        for parameter in module.get_parameters():
            if several:
                broadcast(parameter, source, process_group)
            if parameter.requires_grad:
                parameter.after_backward = self._mean
        if several and broadcast_buffers:
            for buffer in module.buffers():
                broadcast(buffer, source, process_group)

    def construct(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Gradients stay local inside, and accumulate; the next backward pass outside averages the sum."""
        before = self.require_backward_grad_sync
        self.require_backward_grad_sync = False
        try:
            yield
        finally:
            self.require_backward_grad_sync = before

    def _mean(self, gradient: Tensor) -> Tensor:
        if self.require_backward_grad_sync and get_world_size(self.process_group) > 1:
            all_reduce(gradient, ReduceOp.AVG, self.process_group)
        return gradient


class DataParallel(Module):
    """Wraps a module and calls it: what torch does with at most one device. A MindSpore process has one device."""

    def __init__(self, module: nn.Cell, dim: int = 0) -> None:
        super().__init__()
        self.module = module
        self.dim = dim
        self.device_ids: list[int] = []

    def construct(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)


def data_parallel(module: nn.Cell, inputs: Any, module_kwargs: dict[str, Any] | None = None) -> Any:
    """Call a module: what torch does with at most one device."""
    arguments = inputs if isinstance(inputs, tuple) else () if inputs is None else (inputs,)
    return module(*arguments, **(module_kwargs or {}))
