"""Which tensors a checkpoint directory should have, in which spelling, given those that it has."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from mappings.arrangement import Arrangement, Shape
from mappings.errors import UserError
from mappings.families import Family
from mappings.families.family import HF
from mappings.layout import ParallelLayout
from mappings.rank_cuts import RankCuts


@dataclass(frozen=True)
class Stored:
    """Tensors of one rank's file, or of a whole model."""

    spelling: str
    tensors: Mapping[str, Arrangement]
    """What each tensor consists of; those of optional groups only where the group is there."""
    optional: Collection[str]
    """Optional groups that are there."""


def recognise(
    family: Family,
    config: Mapping[str, Any],
    shapes: Mapping[str, Shape],
    where: object,
    layout: ParallelLayout | None = None,
    rank: int = 0,
) -> Stored:
    """The spelling that most names and shapes belong to.

    Args:
        family: of the model.
        config: its `config.json`.
        shapes: by name, of the tensors that are there.
        where: what to name in messages.
        layout: that the tensors are cut for; None: they are whole.
        rank: that holds them.

    Raises:
        UserError: no name is known in any spelling, or spellings fit equally well that arrange elements differently.
    """
    layout = layout or ParallelLayout()
    fitting: dict[str, int] = {}
    named: dict[str, dict[str, tuple[str, Arrangement]]] = {}
    for spelling in (HF, *family.spellings):
        cuts = RankCuts(family, config, layout, spelling)
        named[spelling] = {spelled.name: (spelled.optional, held) for spelled, held in cuts.tensors(rank)}
        fitting[spelling] = sum(
            (name in named[spelling]) + (name in named[spelling] and named[spelling][name][1].shape == shape)
            for name, shape in shapes.items()
        )
    most = max(fitting.values())
    if not most:
        some = ", ".join(sorted(shapes)[:3]) or "none"
        raise UserError(f"{where}: no tensor has a name of the {family.name} family (found {some})")
    best, *others = [spelling for spelling, count in fitting.items() if count == most]
    for other in others:
        for name in shapes:
            if name in named[best] and named[best][name] != named[other].get(name, named[best][name]):
                raise UserError(
                    f"{where}: {name} may be stored as {best} or as {other} has it, and nothing tells which; "
                    "convert the checkpoint (`msmigrate weights convert --from-spelling`)"
                )
    there = {group for name, (group, _) in named[best].items() if group and name in shapes}
    tensors = {name: held for name, (group, held) in named[best].items() if not group or group in there}
    return Stored(best, tensors, frozenset(there))
