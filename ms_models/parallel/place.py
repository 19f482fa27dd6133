"""`Place`: what one rank builds of a model."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import mindspore as ms

from mappings.arrangement import Arrangement
from mappings.families import Family
from mappings.families.family import HF
from mappings.holdings import Held, Holdings
from mappings.layout import ParallelLayout
from mappings.parallel_options import ParallelOptions
from mappings.rank_cuts import RankCuts
from mappings.shards import chunks_of_stage, padded_rows
from ms_models.parallel.context import ContextPlace
from ms_models.parallel.mesh import Mesh

COMPUTE = {"fp32": None, "bf16": ms.bfloat16, "fp16": ms.float16}
"""Number formats by name; None leaves everything in that of the parameters."""


@dataclass(frozen=True)
class Place:
    """A rank's part of a model."""

    mesh: Mesh
    family: Family
    raw: Mapping[str, Any]
    """`config.json`."""
    options: ParallelOptions = field(default_factory=ParallelOptions)
    spelling: str = HF
    """Of the tensors in memory."""
    optional: Collection[str] = field(default_factory=frozenset)
    """Groups of optional tensors that the model has."""
    compute: str = "fp32"
    """Number format of matrix products and of what is between layers: one of `COMPUTE`. Parameters are fp32."""

    @cached_property
    def held(self) -> dict[str, Held]:
        """Every tensor of this rank by name.

        Raises:
            UserError: the layout does not fit the model.
        """
        mesh = self.mesh
        return Holdings(self.family, self.raw, mesh.layout, mesh.rank, self.spelling, self.optional).tensors

    @cached_property
    def _cuts(self) -> dict[ParallelLayout, RankCuts]:
        return {}

    def stored(self, rank: int, *, states: bool, layout: ParallelLayout | None = None) -> dict[str, Arrangement]:
        """The tensors in a rank's file of a checkpoint.

        Args:
            rank: of the world of that layout.
            states: whether optimizer states of the parameters are meant.
            layout: of the checkpoint; None is this one.
        """
        layout = layout or self.mesh.layout
        if layout not in self._cuts:
            self._cuts[layout] = RankCuts(self.family, self.raw, layout)
        cuts = self._cuts[layout]
        return {
            spelled.name: arrangement
            for spelled, arrangement in cuts.tensors(rank, states)
            if not spelled.optional or spelled.optional in self.optional
        }

    @property
    def family_name(self) -> str:
        """Of the manifest."""
        return self.family.name

    @cached_property
    def chunks(self) -> list[range]:
        """Decoder layers of each chunk of this rank's pipeline stage."""
        layers = self.family.dims(self.raw)["layers"]
        return chunks_of_stage(layers, self.mesh.layout, self.mesh.coordinates["pp"])

    @cached_property
    def context(self) -> ContextPlace:
        """This rank's part of every sequence."""
        return ContextPlace(self.mesh.group("cp"), self.options.context)

    @property
    def compute_dtype(self) -> Any:
        """What embedded tokens are cast to, from where it spreads: a layer computes in the format of its input."""
        return COMPUTE[self.compute]

    @property
    def layers(self) -> list[int]:
        """Decoder layers of this rank, ascending."""
        return [layer for chunk in self.chunks for layer in chunk]

    @property
    def is_first(self) -> bool:
        """Whether the model begins here."""
        return self.mesh.coordinates["pp"] == 0

    @property
    def is_last(self) -> bool:
        """Whether the model ends here."""
        return self.mesh.coordinates["pp"] == self.mesh.layout.pp - 1

    @cached_property
    def vocab_rows(self) -> int:
        """Vocabulary rows of a tensor-parallel rank, padding included."""
        rows = next(atom for atom in self.family.atoms(self.raw).values() if atom.padded)
        return padded_rows(rows, self.mesh.layout) // self.mesh.layout.tp
