"""`FullyShardedDataParallel`: torch's numbers, with all parameters on every rank; see `sharded`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from enum import Enum, auto
from typing import Any, TypeVar

from mindspore import Tensor, nn

from .containers import ModuleDict, ModuleList
from .distributed import ProcessGroup
from .gradients import clip_grad_norm_
from .multihead_attention import MultiheadAttention
from .sharded import FSDPModule, synchronised

CellT = TypeVar("CellT", bound=nn.Cell)


class ShardingStrategy(Enum):
    """What torch would shard; here every rank keeps everything, whichever is named."""

    FULL_SHARD = auto()
    SHARD_GRAD_OP = auto()
    NO_SHARD = auto()
    HYBRID_SHARD = auto()


class StateDictType(Enum):
    """The one kind of state that whole parameters have."""

    FULL_STATE_DICT = auto()


class FullStateDictConfig:
    """Settings of torch about where a state is gathered; here every rank has all of it."""

    def __init__(self, offload_to_cpu: bool = False, rank0_only: bool = False) -> None:
        self.offload_to_cpu, self.rank0_only = offload_to_cpu, rank0_only


class FullyShardedDataParallel(FSDPModule):
    """What `fully_sharded` adds to the class of a module."""

    @property
    def module(self) -> Any:
        """The wrapped module, which is the same object."""
        return self

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> Tensor:
        """Scale the gradients to a total norm of at most `max_norm`; returns the norm before."""
        parameters: Any = self.get_parameters()  # type: ignore[attr-defined]
        return clip_grad_norm_(parameters, max_norm, norm_type)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Gradients stay local inside, and accumulate; the next backward pass outside averages the sum."""
        self.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            self.set_requires_gradient_sync(True)

    @staticmethod
    @contextlib.contextmanager
    def state_dict_type(
        module: nn.Cell,
        state_dict_type: StateDictType,
        state_dict_config: Any = None,
        optim_state_dict_config: Any = None,
    ) -> Iterator[None]:
        """Inside, `state_dict()` is whole; here it always is."""
        yield

    @staticmethod
    def optim_state_dict(
        model: nn.Cell, optim: Any, optim_state_dict: dict[str, Any] | None = None, group: ProcessGroup | None = None
    ) -> dict[str, Any]:
        """State of an optimizer with the names of the parameters in place of their numbers."""
        found = optim.state_dict() if optim_state_dict is None else optim_state_dict
        names = _names(model, optim)
        groups = [{**group, "params": [names[number] for number in group["params"]]} for group in found["param_groups"]]
        return {"state": {names[number]: state for number, state in found["state"].items()}, "param_groups": groups}

    @staticmethod
    def optim_state_dict_to_load(
        model: nn.Cell, optim: Any, optim_state_dict: dict[str, Any], *, group: ProcessGroup | None = None
    ) -> dict[str, Any]:
        """The other way: what `optim.load_state_dict` takes.

        Raises:
            KeyError: a name that the optimizer has no parameter for.
        """
        numbers = {name: number for number, name in enumerate(_names(model, optim))}
        groups = optim_state_dict["param_groups"]
        return {
            "state": {numbers[name]: state for name, state in optim_state_dict["state"].items()},
            "param_groups": [{**group, "params": [numbers[name] for name in group["params"]]} for group in groups],
        }


def fully_sharded(module: CellT, process_group: ProcessGroup | None = None) -> CellT:
    """The module itself, which becomes a `FullyShardedDataParallel` as well; its parameters keep their names.

    Raises:
        ValueError: the process group is not initialised.
    """
    return synchronised(module, FullyShardedDataParallel, process_group)


def transformer_auto_wrap_policy(
    module: nn.Cell, recurse: bool, nonwrapped_numel: int, transformer_layer_cls: set[type]
) -> bool:
    """Whether torch would shard a module by itself: one of the classes."""
    return recurse or isinstance(module, tuple(transformer_layer_cls))


def size_based_auto_wrap_policy(
    module: nn.Cell,
    recurse: bool,
    nonwrapped_numel: int,
    min_num_params: int = 100_000_000,
    force_leaf_modules: set[type] | None = None,
    exclude_wrap_modules: set[type] | None = None,
) -> bool:
    """Whether torch would shard a module by itself: one with enough parameters."""
    leaves = {MultiheadAttention} if force_leaf_modules is None else force_leaf_modules
    excluded = {ModuleList, ModuleDict} if exclude_wrap_modules is None else exclude_wrap_modules
    return nonwrapped_numel >= min_num_params and not isinstance(module, tuple(leaves if recurse else excluded))


def _names(model: nn.Cell, optim: Any) -> list[str]:
    """Names of the parameters in the order of the optimizer's numbers."""
    names = {id(parameter): name for name, parameter in model.parameters_and_names()}
    return [names[id(parameter)] for parameter in optim.parameters]
