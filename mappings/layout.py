"""`ParallelLayout`: how a world of ranks is divided, and who sits where.

Rank order, fastest axis first: tp, cp, dp, pp. Expert parallelism divides the dp axis and adds no ranks.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from difflib import get_close_matches

from mappings.errors import UserError

AXES = ("tp", "cp", "dp", "pp")  # fastest first
ZERO_STAGES = (0, 1, 2, 3)
MAX_RANKS = 1 << 17  # more is no machine, but a typing error or a damaged file


@dataclass(frozen=True)
class ParallelLayout:
    """Sizes of the parallel axes of one run or one checkpoint."""

    tp: int = 1
    """Tensor parallel: each weight matrix is cut over this many ranks."""
    cp: int = 1
    """Context parallel: each sequence is cut over this many ranks."""
    dp: int = 1
    """Data parallel: replicas that see different samples."""
    pp: int = 1
    """Pipeline parallel: consecutive groups of layers."""
    vpp: int = 1
    """Virtual pipeline: chunks of layers per pipeline rank."""
    ep: int = 1
    """Expert parallel: experts are cut over this many of the dp ranks."""
    zero: int = 0
    """Optimizer sharding stage over dp (0 none, 1 states, 2 and gradients, 3 and parameters)."""
    vocab_multiple: int = 1
    """Vocabulary rows are padded to a multiple of this times tp."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if type(value) is not int:
                raise UserError(f"layout: {field.name} must be a whole number, found {value!r}")
            if value < (0 if field.name == "zero" else 1):
                raise UserError(f"layout: {field.name} must be at least 1, found {value}")
        if self.zero not in ZERO_STAGES:
            raise UserError(f"layout: zero must be one of {ZERO_STAGES}, found {self.zero}")
        if self.vpp > 1 and self.pp == 1:
            raise UserError(f"layout: vpp={self.vpp} needs pp of at least 2")
        if self.world_size > MAX_RANKS:
            raise UserError(f"layout: {self.world_size} ranks, at most {MAX_RANKS} are supported")
        if self.dp % self.ep:
            raise UserError(f"layout: ep={self.ep} does not divide dp={self.dp}")

    @classmethod
    def from_dict(cls, values: dict[str, object]) -> ParallelLayout:
        """Builds a layout from plain data.

        Raises:
            UserError: unknown key (with the nearest known one) or bad value.
        """
        known = [field.name for field in fields(cls)]
        for key in values:
            if key not in known:
                near = get_close_matches(str(key), known, 1)
                hint = f"; did you mean {near[0]!r}?" if near else f"; known are {', '.join(known)}"
                raise UserError(f"layout: unknown axis {key!r}{hint}")
        return cls(**values)  # type: ignore[arg-type]

    def to_dict(self) -> dict[str, int]:
        """The layout as plain data, every axis named."""
        return asdict(self)

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.tp * self.cp * self.dp * self.pp

    def coordinates(self, rank: int) -> dict[str, int]:
        """Position of `rank` on each of the axes tp, cp, dp, pp."""
        if not 0 <= rank < self.world_size:
            raise UserError(f"layout: rank {rank} is outside a world of {self.world_size}")
        position = {}
        for axis in AXES:
            rank, position[axis] = divmod(rank, getattr(self, axis))
        return position

    def rank(self, *, tp: int = 0, cp: int = 0, dp: int = 0, pp: int = 0) -> int:
        """The rank at a position; inverse of `coordinates`."""
        return tp + self.tp * (cp + self.cp * (dp + self.dp * pp))

    def group(self, rank: int, *axes: str) -> list[int]:
        """Ranks that differ from `rank` only along `axes`, ascending.

        Besides the axes of `AXES` there are the two that expert parallelism divides dp into: `ep`, ranks that hold
        different experts, and `edp`, replicas of the same experts.
        """
        here = self._places(rank)
        free = {*axes, *(("ep", "edp") if "dp" in axes else ())}
        return [
            other
            for other in range(self.world_size)
            if all(here[axis] == place for axis, place in self._places(other).items() if axis not in free)
        ]

    def _places(self, rank: int) -> dict[str, int]:
        here = self.coordinates(rank)
        dp = here.pop("dp")
        return {**here, "ep": dp % self.ep, "edp": dp // self.ep}

    def weight_owner(self, rank: int) -> int:
        """The rank whose file holds the weights of `rank`: the first of those that hold the same ones.

        Data and context replicas do, but not those with other experts, nor any where parameters are cut over dp.
        """
        here = self.coordinates(rank)
        dp = here["dp"] if self.zero == 3 else here["dp"] % self.ep
        return self.rank(tp=here["tp"], pp=here["pp"], dp=dp)

    def state_owner(self, rank: int) -> int:
        """The rank whose file holds the optimizer states of `rank`."""
        here = self.coordinates(rank)
        return self.rank(tp=here["tp"], pp=here["pp"], dp=here["dp"] if self.zero else here["dp"] % self.ep)

    def __str__(self) -> str:
        set_axes = [f"{f.name}={getattr(self, f.name)}" for f in fields(self) if getattr(self, f.name) != f.default]
        return " ".join(set_axes) or "one process"
