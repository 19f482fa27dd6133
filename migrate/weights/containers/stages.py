"""`Stages`: how MindSpore cuts every stored tensor over the ranks of each pipeline stage.

MindSpore cuts tensors *as they are stored*: a fused or padded one like any other, in equal pieces along its axes. From
a `ParallelLayout` the axes follow: an axis that tensor or expert parallelism shortens is cut by it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from mappings.arrangement import Arrangement, Shape
from mappings.errors import UserError
from mappings.families.atoms import Atom
from mappings.formats.strategy_slices import Slices
from mappings.layout import ParallelLayout
from mappings.rank_cuts import RankCuts
from mappings.shards import padded_rows
from migrate.weights.containers.content import Content
from migrate.weights.containers.expected import Expected
from migrate.weights.containers.states import state_name
from migrate.weights.containers.stored_files import state_style


@dataclass(frozen=True)
class Stages:
    """One entry per pipeline stage."""

    ranks: int
    """Ranks of a stage."""
    cuts: tuple[Mapping[str, Slices], ...]
    """By stored name, states included."""
    axes: tuple[str, ...] = ()
    """Names of the mesh axes, where they are known."""
    rows: int = 1
    """Vocabularies are padded to a multiple of so many rows."""

    @property
    def world_size(self) -> int:
        """Ranks of all stages."""
        return self.ranks * len(self.cuts)

    def stage(self, rank: int) -> int:
        """Pipeline stage of a rank."""
        return rank // self.ranks

    def cut(self, name: str, rank: int) -> Slices | None:
        """How a tensor is cut on the stage of a rank; None where that stage does not have it."""
        return self.cuts[self.stage(rank)].get(name)

    def names(self, cut: Slices) -> tuple[str, ...]:
        """Names of the mesh axes of a cut: of the usual mesh, or of one with tp in two."""
        return self.axes if len(cut.mesh) == len(self.axes) else (*self.axes[:-1], "tp", "tp_copies")

    def group(self, name: str, rank: int) -> tuple[int, ...]:
        """Ranks of the stage that hold the same piece of a tensor, ascending."""
        first = self.stage(rank) * self.ranks
        return tuple(first + other for other in self.cuts[self.stage(rank)][name].copies(rank))


def stages_for(content: Content, layout: ParallelLayout) -> Stages:
    """The cut of everything that is to be written.

    The mesh is dp / ep, ep, cp, tp; axes of one rank are left out. Where more tp ranks than key/value heads hold copies
    of them, tp is two axes for those tensors: one that cuts, one along which they are equal. ZeRO becomes the parallel
    optimizer of MindSpore, which cuts axis 0 over the copies: of states from stage 1 on, of parameters in stage 3. What
    does not divide stays whole, as in MindSpore.

    Raises:
        UserError: the layout does not fit the model, or a tensor has no equal pieces.
    """
    every = {"dp": layout.dp // layout.ep, "ep": layout.ep, "cp": layout.cp, "tp": layout.tp}
    mesh = {name: size for name, size in every.items() if size > 1} or {"tp": 1}
    whole = _padded(content, layout)
    # Each axis by itself shows what it shortens; the padding of the vocabulary must be that of all of them.
    by_tp = _Locals(content, replace(layout, ep=1, zero=0))
    by_ep = _Locals(content, replace(layout, tp=1, zero=0, vocab_multiple=layout.vocab_multiple * layout.tp))
    style = state_style(content.spelling)
    atoms = content.family.atoms(content.config)
    result: list[dict[str, Slices]] = []
    for stage in range(layout.pp):
        tp_held, ep_held = by_tp.of_stage(stage), by_ep.of_stage(stage)
        found: dict[str, Slices] = {}
        for name, expected in whole.items():
            if name not in tp_held:
                continue
            own = _with_copies(expected, tp_held[name], mesh, atoms)
            by_axis = (_axes_cut(expected, ep_held[name], own, "ep"), _axes_cut(expected, tp_held[name], own, "tp"))
            cut = tuple((*experts, *tensor) for experts, tensor in zip(*by_axis, strict=True))
            slices = Slices(tuple(own.values()), cut)
            for state in ("", *content.states):
                wanted = layout.zero == 3 or (state and layout.zero > 0)
                found[state_name(state, name, style)] = _sharded(slices, expected) if wanted else slices
        result.append(found)
    return Stages(layout.world_size // layout.pp, tuple(result), tuple(mesh), layout.vocab_multiple * layout.tp)


def whole_for(content: Content, stages: Stages) -> dict[str, Expected]:
    """Every tensor, uncut, its vocabulary padded where the pieces would not be equal otherwise.

    Raises:
        UserError: another axis does not divide.
    """
    result = {}
    atoms = content.family.atoms(content.config)
    style = state_style(content.spelling)
    for name, expected in content.whole.items():
        names = [state_name(state, name, style) for state in ("", *content.states)]
        counts = {cut[stored].counts for cut in stages.cuts for stored in names if stored in cut}
        result[name] = _grown(expected, counts, atoms, stages.rows)
    return result


def _grown(expected: Expected, counts: Collection[Shape], atoms: Mapping[str, Atom], rows: int) -> Expected:
    """A tensor whose axes are multiples of all counts, by zero rows behind the vocabulary: a multiple of `rows`.

    Raises:
        UserError: it is no vocabulary, or has another number of axes.
    """
    arrangement = expected.arrangement
    shape, atom = arrangement.shape, atoms[expected.spelled.atoms[0]]
    if any(len(count) != len(shape) for count in counts):
        raise UserError(f"tensor {expected.name!r}: has {len(shape)} axes, the strategy cuts another number")
    for axis, size in enumerate(shape):
        pieces = math.lcm(*(count[axis] for count in counts))
        is_vocabulary = len(expected.spelled.atoms) == 1 and atom.padded and atom.cut == axis
        if is_vocabulary:
            pieces = math.lcm(pieces, rows)
        if size % pieces == 0:
            continue
        if not is_vocabulary:
            raise UserError(f"tensor {expected.name!r}: axis {axis} of {list(shape)} has no {pieces} equal pieces")
        arrangement = arrangement.pad(axis, -(-size // pieces) * pieces)
    return Expected(expected.spelled, arrangement)


def _padded(content: Content, layout: ParallelLayout) -> dict[str, Expected]:
    """Whole tensors with the vocabulary padding of a layout."""
    atoms = content.family.atoms(content.config)
    result = {}
    for name, expected in content.whole.items():
        atom = atoms[expected.spelled.atoms[0]]
        if len(expected.spelled.atoms) == 1 and atom.padded and atom.cut is not None:
            expected = Expected(expected.spelled, expected.arrangement.pad(atom.cut, padded_rows(atom, layout)))
        result[name] = expected
    return result


class _Locals:
    """What ranks hold of each tensor in a layout without ZeRO."""

    def __init__(self, content: Content, layout: ParallelLayout) -> None:
        self.content, self.layout = content, layout
        self.cuts = RankCuts(content.family, content.config, layout, content.spelling)

    def of_stage(self, stage: int) -> dict[str, Arrangement]:
        """By name, as the first rank of a stage holds it.

        Raises:
            UserError: other ranks do not have a tensor at all: an expert that is stored by itself.
        """
        first, *others = (
            {spelled.name: arrangement for spelled, arrangement in self.cuts.tensors(self.layout.rank(pp=stage, dp=ep))}
            for ep in range(self.layout.ep)
        )
        for other in others:
            if lost := sorted(set(first) ^ set(other)):
                raise UserError(
                    f"layout: ep={self.layout.ep}: {lost[0]} is on some ranks only, which MindSpore has no strategy "
                    f"for; choose a spelling that fuses the experts (the {self.content.family.name} family has "
                    f"{', '.join(self.content.family.spellings) or 'none'})"
                )
        return first


def _with_copies(
    expected: Expected, local: Arrangement, mesh: Mapping[str, int], atoms: Mapping[str, Atom]
) -> Mapping[str, int]:
    """The mesh for a tensor: with tp in two where neighbours hold copies of key/value heads. tp is the last axis."""
    atom = atoms[expected.spelled.atoms[0]]
    if len(expected.spelled.atoms) > 1 or not atom.grouped or atom.cut is None:
        return mesh
    pieces = expected.arrangement.shape[atom.cut] // local.shape[atom.cut]
    if pieces in (1, mesh.get("tp", 1)):
        return mesh
    return {**mesh, "tp": pieces, "copies": mesh["tp"] // pieces}


def _axes_cut(expected: Expected, local: Arrangement, mesh: Mapping[str, int], axis: str) -> list[Shape]:
    """For each axis of a tensor, the number of the mesh axis `axis` where that shortens it to what a rank holds."""
    cut: list[Shape] = []
    for size, part in zip(expected.arrangement.shape, local.shape, strict=True):
        if part != size and size != part * mesh.get(axis, 1):
            raise UserError(
                f"tensor {expected.name!r}: MindSpore has no strategy that makes {list(local.shape)} of "
                f"{list(expected.arrangement.shape)} with {axis}={mesh.get(axis, 1)}, for it cuts what is stored in "
                f"equal pieces; choose a smaller {axis}, or a spelling that keeps keys and values by themselves"
            )
        cut.append((list(mesh).index(axis),) if part != size else ())
    if sum(map(len, cut)) > 1:
        raise UserError(f"tensor {expected.name!r}: {axis} cuts several of its axes, which MindSpore cannot express")
    return cut


def _sharded(slices: Slices, expected: Expected) -> Slices:
    """The same, cut once more over the copies where axis 0 divides."""
    copies = len(slices.copies(0))
    shape = expected.arrangement.shape
    if copies == 1 or not shape or shape[0] // slices.counts[0] % copies:
        return slices
    return Slices(slices.mesh, slices.cuts, copies)
