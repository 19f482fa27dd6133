"""`RankCuts`: the slices of a model's tensors that each rank of any layout holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from mappings.arrangement import Arrangement, Piece, Shape
from mappings.families import Atom, Family, Spelled
from mappings.layout import ParallelLayout
from mappings.shards import check_cut, stages_of_layers, tp_span


class RankCuts:
    """What each rank of a layout holds of a model, in one spelling. Made once, asked for every rank.

    Layers lie on the stages of the (interleaved) pipeline schedule; embeddings on the first stage, the head and what
    belongs to it on the last one. A tied embedding is on both, under one name. Layers that predict further tokens are
    on the last stage. Expert e of E is on the ranks with dp % ep == e * ep // E. Context-parallel ranks hold copies.

    ZeRO cuts tensors as they are stored, after everything else: axis 0 is padded with zeros to a multiple of the number
    of replicas (dp, or dp / ep for tensors of experts) and divided into equal consecutive runs. Stage 3 cuts parameters
    so, stages 1 to 3 optimizer states. Scalars stay whole.
    """

    def __init__(self, family: Family, config: Mapping[str, Any], layout: ParallelLayout, spelling: str = "hf") -> None:
        """Reads the model.

        Args:
            family: of the model.
            config: its `config.json`.
            layout: to cut for.
            spelling: names and fusing of the tensors, one of the family's.

        Raises:
            UserError: the layout does not fit the model.
        """
        check_cut(family, config, layout)
        self.layout = layout
        self.atoms = family.atoms(config)
        self.spelled = family.spelling(config, spelling)
        self.dims = family.dims(config, layout.tp)
        self._experts = family.dims(config).get("experts", 1)
        self._stages = stages_of_layers(family.dims(config)["layers"], layout)
        self._tied = frozenset(family.ties(config).values())
        self._homes = {name: (self._stages_of(atom), self._expert_rank(atom)) for name, atom in self.atoms.items()}
        self._of_experts = frozenset(
            index
            for index, spelled in enumerate(self.spelled)
            if any(self.atoms[name].expert is not None for name in spelled.atoms)
        )
        self._shared: dict[tuple[int, int], Arrangement | None] = {}
        self._narrow: dict[tuple[int, int], Spelled] = {}
        # Of a hundred thousand tensors of experts a rank holds few: they are found by stage and expert rank.
        self._places: dict[tuple[int, int | None], list[int]] = {}
        for index, spelled in enumerate(self.spelled):
            for place in self._places_of(spelled):
                self._places.setdefault(place, []).append(index)

    def local(self, name: str, rank: int) -> Arrangement | None:
        """The slice of an atom that a rank holds (ZeRO left aside), or None."""
        here = self.layout.coordinates(rank)
        return self._local(name, here["tp"], here["pp"], here["dp"] % self.layout.ep)

    def tensors(self, rank: int, states: bool = False) -> list[tuple[Spelled, Arrangement]]:
        """Every tensor of a rank.

        Args:
            rank: of the world.
            states: whether optimizer states of the parameters are meant.
        """
        here = self.layout.coordinates(rank)
        tp, pp, ep = here["tp"], here["pp"], here["dp"] % self.layout.ep
        held: list[tuple[Spelled, Arrangement]] = []
        for index in sorted((*self._places.get((pp, None), ()), *self._places.get((pp, ep), ()))):
            spelled = self.spelled[index]
            piece = self._piece(index, tp, pp, ep)
            if piece is not None:
                held.append((spelled, self._zero(index, piece, here["dp"]) if self._is_cut(states) else piece))
        return held

    def _piece(self, index: int, tp: int, pp: int, ep: int) -> Arrangement | None:
        if index in self._of_experts:
            return self._narrowed(index, ep).arrangement(lambda name: self._local(name, tp, pp, ep), self.dims)
        # The same on every expert rank, and on both stages that hold it.
        if (index, tp) not in self._shared:
            held = self.spelled[index].arrangement(lambda name: self._local(name, tp, pp, ep), self.dims)
            self._shared[index, tp] = held
        return self._shared[index, tp]

    def _narrowed(self, index: int, ep: int) -> Spelled:
        """A tensor with those of its experts only that one expert rank holds."""
        spelled = self.spelled[index]
        if self.layout.ep == 1 or not spelled.experts:
            return spelled
        if (index, ep) not in self._narrow:
            held = tuple(parts for parts in spelled.experts if any(self._homes[name][1] == ep for _, name in parts))
            self._narrow[index, ep] = replace(spelled, experts=held)
        return self._narrow[index, ep]

    def _is_cut(self, states: bool) -> bool:
        return self.layout.zero == 3 or (states and self.layout.zero > 0)

    def _zero(self, index: int, piece: Arrangement, dp_rank: int) -> Arrangement:
        if not piece.shape:
            return piece
        ep = self.layout.ep if index in self._of_experts else 1
        replicas, place = self.layout.dp // ep, dp_rank // ep
        rows = -(-piece.shape[0] // replicas)
        return piece.pad(0, rows * replicas).slice(0, place * rows, (place + 1) * rows)

    def _places_of(self, spelled: Spelled) -> Iterator[tuple[int, int | None]]:
        """Stages and expert rank where a tensor may be; expert rank None is all of them."""
        homes = [self._homes[name] for name in spelled.atoms]
        ranks = {rank for _, rank in homes}
        ep = ranks.pop() if len(ranks) == 1 else None
        yield from ((stage, ep) for stage in {stage for stages, _ in homes for stage in stages})

    def _expert_rank(self, atom: Atom) -> int | None:
        return None if atom.expert is None else atom.expert * self.layout.ep // self._experts

    def _stages_of(self, atom: Atom) -> tuple[int, ...]:
        last = self.layout.pp - 1
        if atom.layer is not None:
            return (self._stages[atom.layer] if atom.layer < len(self._stages) else last,)
        if atom.stage == "last":
            return (last,)
        return (0, last) if last and atom.name in self._tied else (0,)

    def _local(self, name: str, tp: int, pp: int, ep: int) -> Arrangement | None:
        stages, expert_rank = self._homes[name]
        if pp not in stages or expert_rank not in (None, ep):
            return None
        atom = self.atoms[name]
        return _box(atom, *tp_span(atom, self.layout, tp)) if atom.cut is not None else _box(atom, 0, 0, 0)


def _box(atom: Atom, start: int, stop: int, padding: int) -> Arrangement:
    """Indices `start:stop` along the cut of an atom (all of an atom without one), then `padding` of zeros."""
    zeros, axes, steps = (0,) * len(atom.shape), tuple(range(len(atom.shape))), (1,) * len(atom.shape)
    if atom.cut is None:
        return Arrangement(atom.shape, (Piece(atom.name, zeros, atom.shape, zeros, axes, steps),))
    extent = _with(atom.shape, atom.cut, stop - start)
    pieces = (Piece(atom.name, _with(zeros, atom.cut, start), extent, zeros, axes, steps),) if stop > start else ()
    return Arrangement(_with(atom.shape, atom.cut, stop - start + padding), pieces)


def _with(shape: Shape, axis: int, size: int) -> Shape:
    return (*shape[:axis], size, *shape[axis + 1 :])
