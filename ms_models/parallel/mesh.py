"""`Mesh`: this process's place in a parallel layout, and the communication groups it is a member of."""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass

from mindspore.communication import GlobalComm, create_group, get_group_size, get_rank, init

from mappings.errors import UserError
from mappings.layout import AXES, ParallelLayout

GROUPS = (*AXES, "ep", "edp")
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
        self._is_open = False

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
        """The ranks that differ from this one only along `axes`, any of tp, cp, dp, pp, ep and edp.

        `ep` and `edp` are the parts of dp: ranks with other experts, and replicas of the same experts.
        """
        unknown = set(axes) - set(GROUPS)
        assert axes and not unknown, f"no such axes: {sorted(unknown)}"
        ranks = tuple(self.layout.group(self.rank, *axes))
        return Group(self._name(axes, ranks), ranks, ranks.index(self.rank))

    def block(self, axis: str, size: int) -> Group:
        """Consecutive ranks of the group along an axis, of which this one is one of `size`."""
        group = self.group(axis)
        first = group.index // size * size
        return self._of(axis, group.ranks[first : first + size])

    def pair(self, stage: int) -> Group:
        """This rank and its neighbour, of the pipeline stages `stage` and the next one; the first follows the last."""
        group = self.group("pp")
        stages = sorted({stage, (stage + 1) % group.size})
        assert group.index in stages, f"stage {group.index} is not at either end of {stages}"
        return self._of("pp", tuple(group.ranks[one] for one in stages))

    def ends(self) -> Group:
        """This rank and the one beside it in the other of the first and the last pipeline stage."""
        return self.pair(self.layout.pp - 1)

    def _of(self, axis: str, ranks: tuple[int, ...]) -> Group:
        whole = self.group(axis)
        if ranks == whole.ranks:
            return whole
        name = f"{self._prefix()}_{axis}_{'_'.join(map(str, ranks))}" if len(ranks) > 1 else None
        return self._opened(Group(name, ranks, ranks.index(self.rank)))

    def _opened(self, group: Group) -> Group:
        """Creates a group that is not there yet, which is collective among its members."""
        if self._is_open and group.name is not None and group.name not in _created:
            if group.name != GlobalComm.WORLD_COMM_GROUP:
                create_group(group.name, list(group.ranks))
            _created[group.name] = group.ranks
        return group

    def _prefix(self) -> str:
        # The divisions of dp are groups of their own, too, hence ep is part of the name.
        return "msmigrate_" + "".join(f"{axis}{getattr(self.layout, axis)}" for axis in (*AXES, "ep"))

    def _name(self, axes: tuple[str, ...], ranks: tuple[int, ...]) -> str | None:
        if len(ranks) == 1:
            return None
        if len(ranks) == self.layout.world_size:
            return GlobalComm.WORLD_COMM_GROUP
        # Groups along given axes partition the world, so the first member tells them apart within a layout. An axis
        # of one rank changes nothing, so that a group has one name however it is asked for.
        named = "".join(axis for axis in GROUPS if axis in axes and self._size(axis) > 1)
        return f"{self._prefix()}_{named}_{ranks[0]}"

    def _size(self, axis: str) -> int:
        sizes = {"ep": self.layout.ep, "edp": self.layout.dp // self.layout.ep}
        return sizes.get(axis) or int(getattr(self.layout, axis))

    def _create_groups(self) -> None:
        # Eagerly and in one order on every rank: creation is collective among the members.
        self._is_open = True
        active = [axis for axis in AXES if getattr(self.layout, axis) > 1]
        for count in range(1, len(active)):
            for axes in itertools.combinations(active, count):
                self._opened(self.group(*axes))
        if self.layout.ep > 1:
            for axes in (("ep",), ("edp",), ("edp", "cp")):
                self._opened(self.group(*axes))
        stage, stages = self.coordinates["pp"], self.layout.pp
        for first in range(stages if stages > 1 else 0):
            if stage in (first, (first + 1) % stages):
                self.pair(first)
