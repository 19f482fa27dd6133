"""Distributed tensors as torch's tensor parallel interface hands them around: a local part and how it is laid out.

A `DTensor` here carries values between modules; it computes nothing. Arithmetic on it raises, where torch would
dispatch to sharded operations: take `.to_local()` or `.full_tensor()` first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mindspore import Parameter, Tensor

from .device_mesh import DeviceMesh
from .distributed import ProcessGroup, ReduceOp, broadcast, reduced
from .group_functions import gather_from_ranks, own_share, split_to_ranks, sum_from_ranks


class Placement:
    """How a tensor lies along one axis of a mesh."""

    def is_shard(self, dim: int | None = None) -> bool:
        """Whether it is cut, along axis `dim` if one is given."""
        return isinstance(self, Shard) and dim in (None, self.dim)

    def is_replicate(self) -> bool:
        """Whether every rank has all of it."""
        return isinstance(self, Replicate)

    def is_partial(self) -> bool:
        """Whether the ranks' values must still be added."""
        return isinstance(self, Partial)


@dataclass(frozen=True)
class Shard(Placement):
    """Cut along axis `dim`, one part per rank."""

    dim: int

    def __repr__(self) -> str:
        return f"Shard(dim={self.dim})"


@dataclass(frozen=True)
class Replicate(Placement):
    """The same on every rank."""

    def __repr__(self) -> str:
        return "Replicate()"


@dataclass(frozen=True)
class Partial(Placement):
    """The ranks' values add up to the tensor."""

    reduce_op: str = "sum"

    def __post_init__(self) -> None:
        if self.reduce_op != "sum":
            raise ValueError(f"Partial({self.reduce_op!r}) is not written; only sums are")

    def __repr__(self) -> str:
        return f"Partial({self.reduce_op})"


class _Kind(type):
    # parameters that were distributed stay MindSpore parameters; `isinstance` finds them by what was added to them
    def __instancecheck__(cls, value: Any) -> bool:
        return super().__instancecheck__(value) or (isinstance(value, Parameter) and hasattr(value, "placements"))


class DTensor(metaclass=_Kind):
    """The local part of a tensor, the mesh it lies on and its placement along each axis of the mesh."""

    def __init__(self, local: Tensor, device_mesh: DeviceMesh, placements: Sequence[Placement]) -> None:
        self._local = local
        self.device_mesh = device_mesh
        self.placements = _normalised(placements, local.ndim, device_mesh)

    @staticmethod
    def from_local(
        local_tensor: Tensor,
        device_mesh: DeviceMesh,
        placements: Sequence[Placement] | None = None,
        *,
        run_check: bool = False,
    ) -> DTensor:
        """What every rank holds, taken together; replicated unless said otherwise."""
        return DTensor(local_tensor, device_mesh, placements or [Replicate()] * device_mesh.ndim)

    def to_local(self) -> Tensor:
        """This rank's part. Its gradient must be laid out as the tensor is."""
        return self._local

    def full_tensor(self) -> Tensor:
        """All of it, on every rank."""
        return self.redistribute(placements=[Replicate()] * self.device_mesh.ndim).to_local()

    def redistribute(
        self, device_mesh: DeviceMesh | None = None, placements: Sequence[Placement] | None = None
    ) -> DTensor:
        """The same tensor in another layout; gradients come back in this one.

        Raises:
            ValueError: another mesh, an uneven split, or a new partial layout.
        """
        if device_mesh is not None and device_mesh != self.device_mesh:
            raise ValueError("a tensor cannot be moved to another mesh")
        assert placements is not None, "redistribute needs placements"
        target = _normalised(placements, self._local.ndim, self.device_mesh)
        local, mesh = self._local, self.device_mesh
        # gathered from the last axis of the mesh to the first and cut the other way: shards of shards stay in order
        changed = [axis for axis in range(mesh.ndim) if self.placements[axis] != target[axis]]
        first = min(changed, default=mesh.ndim)
        for axis in reversed(range(first, mesh.ndim)):
            local = _whole(local, self.placements[axis], mesh.get_group(axis))
        for axis in range(first, mesh.ndim):
            local = _placed(local, target[axis], mesh.get_group(axis))
        return DTensor(local, mesh, target)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the whole tensor."""
        shape = list(self._local.shape)
        for axis, placement in enumerate(self.placements):
            if isinstance(placement, Shard):
                shape[placement.dim] *= self.device_mesh.size(axis)
        return tuple(shape)

    def size(self, dim: int | None = None) -> Any:
        """Shape of the whole tensor, or its length along an axis."""
        return self.shape if dim is None else self.shape[dim]

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return int(self._local.ndim)

    @property
    def dtype(self) -> Any:
        """Data type."""
        return self._local.dtype

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise AttributeError(
            f"a distributed tensor has no {name!r}: MindSpore computes on local tensors; "
            "take .to_local() or .full_tensor(), or use_local_output=True"
        )

    def __repr__(self) -> str:
        return f"DTensor(local_tensor={self._local}, device_mesh={self.device_mesh}, placements={self.placements})"


def _normalised(placements: Sequence[Placement], ndim: int, mesh: DeviceMesh) -> tuple[Placement, ...]:
    if len(placements) != mesh.ndim:
        raise ValueError(f"`placements` must have the same length as `device_mesh.ndim`! Found {len(placements)}.")
    return tuple(Shard(p.dim % ndim) if isinstance(p, Shard) and p.dim < 0 else p for p in placements)


def _whole(local: Tensor, placement: Placement, group: ProcessGroup) -> Tensor:
    if isinstance(placement, Shard):
        return gather_from_ranks(local, group, placement.dim)
    return sum_from_ranks(local, group) if isinstance(placement, Partial) else local


def _placed(local: Tensor, placement: Placement, group: ProcessGroup) -> Tensor:
    if isinstance(placement, Partial):
        raise ValueError("a tensor cannot be made partial")
    return split_to_ranks(local, group, placement.dim) if isinstance(placement, Shard) else local


def _pieces(
    tensor: Tensor, mesh: DeviceMesh, placements: Sequence[Placement], src_data_rank: int | None
) -> tuple[Tensor, tuple[Placement, ...]]:
    """This rank's part of the source rank's values, without gradient."""
    local = tensor.copy()
    layout = _normalised(placements, local.ndim, mesh)
    for axis, placement in enumerate(layout):
        group = mesh.get_group(axis)
        if src_data_rank is not None and group.size() > 1:
            broadcast(local, group.ranks[src_data_rank], group)
        if isinstance(placement, Shard):
            local = own_share(local, group, placement.dim)
        elif isinstance(placement, Partial):
            raise ValueError("a tensor cannot be distributed as partial sums")
    return local, layout


def distribute_tensor(
    tensor: Tensor,
    device_mesh: DeviceMesh,
    placements: Sequence[Placement] | None = None,
    *,
    src_data_rank: int | None = 0,
) -> DTensor:
    """The source rank's tensor, laid out over the mesh; each rank's own values with `src_data_rank=None`.

    Raises:
        ValueError: an axis cannot be divided evenly.
    """
    local, layout = _pieces(tensor, device_mesh, placements or [Replicate()] * device_mesh.ndim, src_data_rank)
    return DTensor(local, device_mesh, layout)


def distribute_parameter(
    parameter: Parameter, device_mesh: DeviceMesh, placement: Placement, src_data_rank: int | None
) -> Parameter:
    """A parameter of the same name that holds this rank's part; `isinstance(it, DTensor)` is true.

    It gets `placements`, `device_mesh`, `to_local()` and `full_tensor()`; shape, values and gradient are local.
    """
    local, layout = _pieces(parameter, device_mesh, [placement], src_data_rank)
    made = Parameter(local, name=parameter.name, requires_grad=parameter.requires_grad)
    made.placements, made.device_mesh = layout, device_mesh
    made.to_local = lambda: made
    made.full_tensor = lambda: DTensor(made, device_mesh, layout).full_tensor()
    group = device_mesh.get_group()
    if placement.is_shard() and group.size() > 1:
        # gradients.total_norm adds what the other ranks hold
        made.combine_shards = _Combine(group)
    return made


@dataclass(frozen=True)
class _Combine:
    group: ProcessGroup

    def __call__(self, value: Tensor, largest: bool) -> Tensor:
        return reduced(value, ReduceOp.MAX if largest else ReduceOp.SUM, self.group)
