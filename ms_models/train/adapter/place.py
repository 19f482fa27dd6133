"""`AdaptedPlace`: what one rank builds of an adapted model; the counterpart of `ms_models.parallel.place.Place`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from mappings.arrangement import Arrangement
from mappings.families.family import HF
from mappings.holdings import Held
from mappings.layout import ParallelLayout
from mappings.parallel_options import ParallelOptions
from ms_models.parallel.context import ContextPlace
from ms_models.parallel.mesh import Mesh
from ms_models.train.adapter.tensors import Tensors

FAMILY = "converted code"
"""Stands in manifests where other checkpoints name their family."""


@dataclass(frozen=True)
class AdaptedPlace:
    """A rank's part of an adapted model."""

    mesh: Mesh
    tensors: Tensors
    options: ParallelOptions
    saved: Tensors | None = None
    """As the checkpoint that the run goes on from describes them: its run may have named no blocks, or others."""
    spelling: str = HF
    """Tensors are stored as they are in memory, which is all that this says here."""
    family_name: str = FAMILY
    compute_dtype: Any = None
    """Of what crosses between pipeline stages; None is fp32. Converted code computes in what it says itself."""

    @cached_property
    def held(self) -> dict[str, Held]:
        """Every tensor of this rank by name.

        Raises:
            UserError: the layout does not fit the model.
        """
        return self.tensors.held(self.mesh.layout, self.mesh.rank)

    @cached_property
    def chunks(self) -> list[range]:
        """Blocks of each chunk of this rank's pipeline stage."""
        return self.tensors.chunks(self.mesh.layout, self.mesh.coordinates["pp"])

    def stored(self, rank: int, *, states: bool, layout: ParallelLayout | None = None) -> dict[str, Arrangement]:
        """The tensors in a rank's file of a checkpoint.

        Args:
            rank: of the world of that layout.
            states: whether optimizer states of the parameters are meant.
            layout: of the checkpoint that the run goes on from; None is the one of the run.
        """
        if layout is None:
            return self.tensors.stored(self.mesh.layout, rank, states=states)
        return (self.saved or self.tensors).stored(layout, rank, states=states)

    @cached_property
    def context(self) -> ContextPlace:
        """This rank's part of every sequence, which is all of it."""
        return ContextPlace(self.mesh.group("cp"), self.options.context)

    @property
    def is_first(self) -> bool:
        """Whether the model begins here."""
        return self.mesh.coordinates["pp"] == 0

    @property
    def is_last(self) -> bool:
        """Whether the model ends here."""
        return self.mesh.coordinates["pp"] == self.mesh.layout.pp - 1
