"""`DeviceMesh`: the ranks of a launch as a grid, with a process group along each axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from mindspore import Tensor

from .distributed import ProcessGroup, get_rank, get_world_size, init_process_group, is_initialized, new_group


class DeviceMesh:
    """A grid of ranks; every rank of the launch must make the same meshes in the same order."""

    def __init__(
        self,
        device_type: str,
        mesh: Any,
        *,
        mesh_dim_names: Sequence[str] | None = None,
        _groups: Sequence[ProcessGroup | None] | None = None,
    ) -> None:
        if not is_initialized():
            init_process_group()
        grid = np.asarray(mesh.asnumpy() if isinstance(mesh, Tensor) else mesh, np.int32)
        if grid.size > get_world_size():
            raise RuntimeError(
                f"Mesh should not be bigger than default world size {get_world_size()}, but found {grid.size} ranks!"
            )
        if mesh_dim_names is not None and (
            len(mesh_dim_names) != grid.ndim or len(set(mesh_dim_names)) != len(mesh_dim_names)
        ):
            raise RuntimeError(f"mesh_dim_names {tuple(mesh_dim_names)} must name each of {grid.ndim} axes once")
        self.device_type = device_type
        self.mesh_dim_names = None if mesh_dim_names is None else tuple(mesh_dim_names)
        self._grid = grid
        self._groups = list(_groups) if _groups is not None else [self._group(axis) for axis in range(grid.ndim)]

    def _group(self, axis: int) -> ProcessGroup | None:
        own = None
        for line in np.moveaxis(self._grid, axis, -1).reshape(-1, self._grid.shape[axis]):
            if list(line) != sorted(line):
                raise ValueError(f"the ranks {line.tolist()} of a mesh must ascend along its axes")
            group = new_group(line.tolist())
            own = group if get_rank() in line else own
        return own

    @property
    def mesh(self) -> Tensor:
        """The ranks, int32."""
        return Tensor(self._grid)

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return int(self._grid.ndim)

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of ranks along each axis."""
        return tuple(self._grid.shape)

    def size(self, mesh_dim: int | None = None) -> int:
        """Number of ranks, of all or along an axis."""
        return int(self._grid.size if mesh_dim is None else self._grid.shape[mesh_dim])

    def numel(self) -> int:
        """Number of ranks."""
        return int(self._grid.size)

    def get_rank(self) -> int:
        """Rank of this process in the world."""
        return get_rank()

    def get_coordinate(self) -> tuple[int, ...] | None:
        """Place of this process, None outside the mesh."""
        places = np.argwhere(self._grid == get_rank())
        return tuple(int(i) for i in places[0]) if len(places) else None

    def get_local_rank(self, mesh_dim: int | str | None = None) -> int:
        """Place of this process along an axis, which a mesh of one axis need not name.

        Raises:
            RuntimeError: no axis is named and there are several, or this process is outside the mesh.
        """
        coordinate = self.get_coordinate()
        axis = self._axis(mesh_dim)
        if coordinate is None:
            raise RuntimeError(f"rank {get_rank()} is not part of the mesh")
        return coordinate[axis]

    def get_group(self, mesh_dim: int | str | None = None) -> ProcessGroup:
        """The process group of this rank along an axis, which a mesh of one axis need not name.

        Raises:
            RuntimeError: no axis is named and there are several, or this process is outside the mesh.
        """
        group = self._groups[self._axis(mesh_dim)]
        if group is None:
            raise RuntimeError(f"rank {get_rank()} is not part of the mesh")
        return group

    def get_all_groups(self) -> list[ProcessGroup]:
        """The process group of this rank along each axis."""
        return [self.get_group(axis) for axis in range(self.ndim)]

    def _axis(self, mesh_dim: int | str | None) -> int:
        if mesh_dim is None:
            if self.ndim > 1:
                raise RuntimeError(f"the mesh has {self.ndim} axes; name the one that is meant (mesh_dim)")
            return 0
        return self._named((mesh_dim,))[0] if isinstance(mesh_dim, str) else mesh_dim

    def _named(self, names: tuple[str, ...]) -> list[int]:
        known = self.mesh_dim_names or ()
        if not set(names) <= set(known):
            raise KeyError(f"Invalid mesh_dim_names {names} specified. Valid mesh_dim_names are {list(known)}.")
        return [known.index(name) for name in names]

    def __getitem__(self, names: str | tuple[str, ...]) -> DeviceMesh:
        """The part of the mesh along some axes, in their order, that holds this process.

        Raises:
            KeyError: there is no axis of that name.
            RuntimeError: this process is outside the mesh.
        """
        wanted = (names,) if isinstance(names, str) else tuple(names)
        axes = self._named(wanted)
        coordinate = self.get_coordinate()
        if coordinate is None:
            raise RuntimeError(f"rank {get_rank()} is not part of the mesh")
        index = tuple(slice(None) if axis in axes else place for axis, place in enumerate(coordinate))
        part = self._grid[index].transpose(np.argsort(np.argsort(axes)))
        groups = [self._groups[axis] for axis in axes]
        return DeviceMesh(self.device_type, part, mesh_dim_names=wanted, _groups=groups)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DeviceMesh):
            return NotImplemented
        mine, theirs = ((m.device_type, m.mesh_dim_names, m.shape, m._grid.tobytes()) for m in (self, other))
        return mine == theirs

    def __hash__(self) -> int:
        return hash((self.device_type, self.mesh_dim_names, self.shape, self._grid.tobytes()))

    def __repr__(self) -> str:
        return f"DeviceMesh({self.device_type!r}, {self._grid.tolist()}, mesh_dim_names={self.mesh_dim_names})"


def init_device_mesh(
    device_type: str, mesh_shape: Sequence[int], *, mesh_dim_names: Sequence[str] | None = None
) -> DeviceMesh:
    """A mesh of the first ranks in order, the last axis running fastest.

    Raises:
        RuntimeError: the mesh is larger than the launch, or its axes are not named once each.
    """
    count = int(np.prod(mesh_shape))
    return DeviceMesh(device_type, np.arange(count).reshape(tuple(mesh_shape)), mesh_dim_names=mesh_dim_names)
