"""`Mesh`: this process's place in a parallel layout, and the communication groups it is a member of."""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass

from mindspore.communication import GlobalComm, create_group, get_group_size, get_rank, init

from mappings.errors import UserError
from mappings.layout import AXES, ParallelLayout

_created: dict[str, tuple[int, ...]] = {}  # MindSpore's group names are global to the process, so is this record


@dataclass(frozen=True)
class Group:
    """Ranks that communicate, as seen from one of them."""

    name: str | None
    """Name known to MindSpore; None for a group of one, which never communicates."""
    ranks: tuple[int, ...]
    """Members, ascending."""
    index: int
    """Position of this process in `ranks`."""

    @property
    def size(self) -> int:
        """Number of members."""
        return len(self.ranks)


class Mesh:
    """A layout seen from one of its ranks.

    The constructor only computes, so a single process may look at any rank's place. `from_environment` also opens the
    communication that `group(...).name` refers to.
    """

    def __init__(self, layout: ParallelLayout, rank: int = 0) -> None:
        self.layout = layout
        self.rank = rank
        self.coordinates = layout.coordinates(rank)
        """Position on each of the axes tp, cp, dp, pp."""

    @classmethod
    def single(cls) -> Mesh:
        """One process on its own."""
        return cls(ParallelLayout())

    @classmethod
    def from_environment(cls, layout: ParallelLayout) -> Mesh:
        """The mesh of a process started by `msrun`: initialises communication and creates its groups.

        Every rank must call this, with the same layout. Nothing is initialised for a layout of one process.

        Raises:
            UserError: the number of started processes is not the layout's.
        """
        if layout.world_size == 1:
            started = int(os.environ.get("MS_WORKER_NUM", "1"))
            if started != 1:
                raise UserError(f"layout: one process is wanted, {started} were started; set dp or tp, or start one")
            return cls(layout)
        if "MS_ROLE" not in os.environ and "RANK_TABLE_FILE" not in os.environ:
            raise UserError(f"layout: {layout} needs {layout.world_size} processes; start them with msrun")
        init()
        started = get_group_size()
        if started != layout.world_size:
            raise UserError(f"layout: {layout} needs {layout.world_size} processes, {started} were started")
        mesh = cls(layout, get_rank())
        mesh._create_groups()
        return mesh

    def group(self, *axes: str) -> Group:
        """The ranks that differ from this one only along `axes` (any of tp, cp, dp, pp)."""
        unknown = set(axes) - set(AXES)
        assert axes and not unknown, f"no such axes: {sorted(unknown)}"
        ranks = tuple(self.layout.group(self.rank, *axes))
        return Group(self._name(axes, ranks), ranks, ranks.index(self.rank))

    def _name(self, axes: tuple[str, ...], ranks: tuple[int, ...]) -> str | None:
        if len(ranks) == 1:
            return None
        if len(ranks) == self.layout.world_size:
            return GlobalComm.WORLD_COMM_GROUP
        # Groups along given axes partition the world, so the first member tells them apart within a layout.
        sizes = "".join(f"{axis}{getattr(self.layout, axis)}" for axis in AXES)
        return f"msmigrate_{sizes}_{''.join(axis for axis in AXES if axis in axes)}_{ranks[0]}"

    def _create_groups(self) -> None:
        # Eagerly and in one order on every rank: creation is collective among the members.
        active = [axis for axis in AXES if getattr(self.layout, axis) > 1]
        for count in range(1, len(active)):
            for axes in itertools.combinations(active, count):
                group = self.group(*axes)
                assert group.name is not None
                if group.name not in _created:
                    create_group(group.name, list(group.ranks))
                    _created[group.name] = group.ranks
