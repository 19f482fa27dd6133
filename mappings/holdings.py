"""What one rank of a run holds of a model: each tensor in memory, and how often it is there in the whole world."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from mappings.arrangement import Arrangement, Shape
from mappings.errors import UserError
from mappings.families import Family, Spelled
from mappings.families.family import HF
from mappings.layout import ParallelLayout
from mappings.rank_cuts import RankCuts


@dataclass(frozen=True)
class Held:
    """One tensor of one rank."""

    name: str
    arrangement: Arrangement
    """What it consists of."""
    whole: Arrangement
    """The same tensor uncut, without padding."""
    layer_class: str
    """What the layer is to a parallel plan, see `mappings.families.atoms.CLASSES`."""
    is_expert: bool
    """Whether other expert ranks hold other experts, so that only some data-parallel ranks hold the same."""
    copies: tuple[int, ...]
    """Tensor-parallel positions that hold the same, this one included."""
    is_counted: bool
    """Whether this rank is the first one that holds it, which counts it in sums over the model."""
    is_at_both_ends: bool = False
    """Whether the first and the last pipeline stage hold it: a table that is the output head as well."""

    @property
    def shape(self) -> Shape:
        """Of this rank's tensor, padding included."""
        return self.arrangement.shape


class Holdings:
    """What a rank holds of a model in training. Optimizer sharding is left aside: it cuts what is listed here.

    Args:
        family: of the model.
        config: its `config.json`.
        layout: of the run.
        rank: of the world.
        spelling: names and fusing of the tensors in memory, one of the family's.
        optional: groups of optional tensors that the model has, see `Spelled.optional`.

    Raises:
        UserError: the layout does not fit the model.
    """

    def __init__(
        self,
        family: Family,
        config: Mapping[str, Any],
        layout: ParallelLayout,
        rank: int,
        spelling: str = HF,
        optional: Collection[str] = (),
    ) -> None:
        self.family, self.config, self.layout, self.rank = family, config, layout, rank
        self.spelling = spelling
        self._optional = frozenset(optional)
        self._cuts = RankCuts(family, config, replace(layout, zero=0), spelling)

    @cached_property
    def tensors(self) -> dict[str, Held]:
        """By name, in the order of the model."""
        atoms = self.family.atoms(self.config)
        uncut = RankCuts(self.family, self.config, ParallelLayout(), self.spelling)
        wholes = {spelled.name: arrangement for spelled, arrangement in uncut.tensors(0)}
        tied = frozenset(self.family.ties(self.config).values())
        here = self.layout.coordinates(self.rank)
        beside = [
            {s.name: a for s, a in self._cuts.tensors(self.layout.rank(**{**here, "tp": tp}))}
            for tp in range(self.layout.tp)
        ]
        result = {}
        for spelled, arrangement in self._cuts.tensors(self.rank):
            if spelled.optional and spelled.optional not in self._optional:
                continue
            first = atoms[spelled.atoms[0]]
            copies = tuple(tp for tp, held in enumerate(beside) if held[spelled.name] == arrangement)
            self._check_copies(spelled, copies)
            is_expert = first.expert is not None
            replica = here["dp"] // self.layout.ep if is_expert else here["dp"]
            # A head that further-token layers share is on the last stage only.
            is_at_both_ends = self.layout.pp > 1 and spelled.name in tied and first.stage != "last"
            result[spelled.name] = Held(
                spelled.name,
                arrangement,
                wholes[spelled.name],
                first.layer_class,
                is_expert,
                copies,
                here["tp"] == copies[0] and not here["cp"] and not replica and not (is_at_both_ends and here["pp"]),
                is_at_both_ends,
            )
        return result

    def _check_copies(self, spelled: Spelled, copies: tuple[int, ...]) -> None:
        """Of a fused tensor, some parts would be copies and others not."""
        atoms = self.family.atoms(self.config)
        parts = [atoms[name] for name in spelled.atoms]
        tp = self.layout.tp
        if len(copies) == 1 and any(a.grouped and a.cut is not None and a.shape[a.cut] // a.unit < tp for a in parts):
            raise UserError(
                f"layout: tp={tp} is more than the key/value heads, and {spelled.name} is fused with the queries; "
                "take a tp that divides the key/value heads"
            )


def check_trainable(family: Family, config: Mapping[str, Any], layout: ParallelLayout, spelling: str = HF) -> None:
    """Refuses a layout that a model cannot be trained in, before anything starts.

    Raises:
        UserError: names the axis, the sizes that clash and a size that would fit.
    """
    _ = Holdings(family, config, layout, 0, spelling).tensors
    if layout.zero == 3 and layout.pp > 1:
        raise UserError(f"layout: zero=3 with pp={layout.pp}: stages do not gather their parameters; take zero=2")
