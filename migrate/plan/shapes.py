"""`ModelShapes`: what a rank holds of a model, tensor by tensor, in shapes only, for any layout in microseconds.

`mappings/holdings.py` says the same with every index, for one rank of one layout. Here layers that are alike are
counted, not listed, so that thousands of layouts of thousands of ranks can be compared;
`tests/plan/test_plan_shapes.py` holds both against each other, element for element.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from mappings.arrangement import Arrangement, Shape
from mappings.families import Atom, Family, Spelled
from mappings.families.family import HF
from mappings.layout import ParallelLayout
from mappings.shards import chunks_of_stage, padded_rows, tp_span

FUSED = "hf_fused"
"""The spelling in which models with experts are held in memory, one tensor for all experts of a rank."""
FIRST, LAST = "first", "last"


@dataclass(frozen=True)
class LocalTensor:
    """One tensor of one rank."""

    shape: Shape
    layer_class: str
    is_expert: bool

    @property
    def size(self) -> int:
        """Elements, padding included."""
        return math.prod(self.shape)

    def kept(self, replicas: int) -> int:
        """Elements of the share that one of `replicas` ranks keeps: rows padded to a multiple; scalars are whole."""
        if not self.shape:
            return 1
        return -(-self.shape[0] // replicas) * math.prod(self.shape[1:])


@dataclass(frozen=True)
class StageContents:
    """What a pipeline stage consists of; stages that are alike compare equal."""

    layers: tuple[tuple[int, int], ...]
    """Kind of layer and how many there are."""
    chunk_layers: int
    """Of the largest of its chunks."""
    is_first: bool
    is_last: bool

    @property
    def layer_count(self) -> int:
        """Layers of all kinds."""
        return sum(count for _, count in self.layers)


class ModelShapes:
    """Shapes of a model for every layout.

    Args:
        family: of the model.
        config: its `config.json`.
        spelling: of the tensors in memory; None takes the one that `ms_models` builds the family in.
    """

    def __init__(self, family: Family, config: Mapping[str, Any], spelling: str | None = None) -> None:
        self.family, self.config = family, config
        self.spelling = spelling or (FUSED if FUSED in family.spellings else HF)
        self.dims = family.dims(config)
        self.layers = self.dims["layers"]
        self.atoms = family.atoms(config)
        self.experts = self.dims.get("experts", 0) if any(a.expert is not None for a in self.atoms.values()) else 0
        self._tied = frozenset(family.ties(config).values())
        by_layer: list[list[Spelled]] = [[] for _ in range(self.layers)]
        self._ends: dict[str, list[Spelled]] = {FIRST: [], LAST: []}
        for spelled in family.spelling(config, self.spelling):
            if spelled.optional:
                continue  # as `Holdings` where the checkpoint has none of them
            atom = self.atoms[spelled.atoms[0]]
            if atom.layer is not None and atom.layer < self.layers:
                by_layer[atom.layer].append(spelled)
                continue
            for end in self._ends_of(atom):
                self._ends[end].append(spelled)
        kinds: dict[Any, int] = {}
        self.kind_of_layer = [kinds.setdefault(self._signature(layer), len(kinds)) for layer in by_layer]
        self._examples = {kind: by_layer[self.kind_of_layer.index(kind)] for kind in kinds.values()}
        self._cache: dict[Any, Any] = {}
        self.sizes: dict[Any, Any] = {}
        """What `migrate.plan.memory` counted of stages, kept here as long as the shapes."""

    @cached_property
    def parameters(self) -> int:
        """Elements of the whole model, without padding; a tied table once."""
        return sum(math.prod(self.atoms[name].shape) for spelled in self._all() for name in spelled.atoms)

    def stage(self, layout: ParallelLayout, stage: int) -> StageContents:
        """What a stage consists of."""
        chunks = chunks_of_stage(self.layers, layout, stage)
        counts = Counter(self.kind_of_layer[layer] for chunk in chunks for layer in chunk)
        longest = max(len(chunk) for chunk in chunks)
        return StageContents(tuple(sorted(counts.items())), longest, stage == 0, stage == layout.pp - 1)

    def stages(self, layout: ParallelLayout) -> list[tuple[int, StageContents]]:
        """The different stages of a layout, each once, with the first place of each."""
        key = ("stages", layout.pp, layout.vpp)
        if key not in self._cache:
            found: dict[StageContents, int] = {}
            for stage in range(layout.pp):
                found.setdefault(self.stage(layout, stage), stage)
            self._cache[key] = [(index, contents) for contents, index in found.items()]
        result: list[tuple[int, StageContents]] = self._cache[key]
        return result

    def head_rows(self, tp: int) -> int:
        """Rows of the vocabulary on each rank, padding included."""
        table = next(atom for atom in self.atoms.values() if atom.padded)
        return padded_rows(table, ParallelLayout(tp=tp)) // tp

    def layer(self, kind: int, tp: int, ep: int) -> tuple[LocalTensor, ...]:
        """Tensors of a layer of one kind on each rank of `tp` and `ep`."""
        return self._local(("layer", kind, tp, ep), self._examples[kind], tp, ep)

    def ends(self, is_first: bool, is_last: bool, tp: int) -> tuple[LocalTensor, ...]:
        """Tensors outside the layers that a stage holds; a table that is also the head is there once per stage."""
        chosen = {s.name: s for end, here in ((FIRST, is_first), (LAST, is_last)) if here for s in self._ends[end]}
        return self._local(("ends", is_first, is_last, tp), chosen.values(), tp, 1)

    def tensors(self, contents: StageContents, tp: int, ep: int) -> list[tuple[LocalTensor, int]]:
        """Every tensor of a stage and how often it is there."""
        result = [(tensor, count) for kind, count in contents.layers for tensor in self.layer(kind, tp, ep)]
        return result + [(tensor, 1) for tensor in self.ends(contents.is_first, contents.is_last, tp)]

    def _all(self) -> Iterable[Spelled]:
        for kind in self.kind_of_layer:
            yield from self._examples[kind]
        yield from {s.name: s for end in (FIRST, LAST) for s in self._ends[end]}.values()

    def _ends_of(self, atom: Atom) -> tuple[str, ...]:
        if atom.layer is not None or atom.stage == "last":
            return (LAST,)
        return (FIRST, LAST) if atom.name in self._tied else (FIRST,)

    def _signature(self, layer: list[Spelled]) -> Any:
        facts = []
        for spelled in layer:
            atoms = [self.atoms[name] for name in spelled.atoms]
            first = atoms[0]
            facts.append((spelled.packing, len(atoms), tuple({(a.shape, a.cut, a.unit, a.grouped) for a in atoms}),
                          first.layer_class, first.expert is not None))  # fmt: skip
        return tuple(facts)

    def _local(self, key: Any, spelled: Iterable[Spelled], tp: int, ep: int) -> tuple[LocalTensor, ...]:
        if key not in self._cache:
            layout = ParallelLayout(tp=tp, dp=ep, ep=ep)
            dims = self.family.dims(self.config, tp)
            self._cache[key] = tuple(self._tensor(one, layout, dims) for one in spelled)
        found: tuple[LocalTensor, ...] = self._cache[key]
        return found

    def _tensor(self, spelled: Spelled, layout: ParallelLayout, dims: Mapping[str, int]) -> LocalTensor:
        def held(name: str) -> Arrangement | None:
            atom = self.atoms[name]
            if atom.expert is not None and atom.expert * layout.ep // self.experts:
                return None
            if atom.cut is None:
                return Arrangement(atom.shape, ())
            start, stop, padding = tp_span(atom, layout, 0)
            shape = (*atom.shape[: atom.cut], stop - start + padding, *atom.shape[atom.cut + 1 :])
            return Arrangement(shape, ())

        first = self.atoms[spelled.atoms[0]]
        arrangement = spelled.arrangement(held, dims)
        assert arrangement is not None, spelled.name
        return LocalTensor(arrangement.shape, first.layer_class, first.expert is not None)
