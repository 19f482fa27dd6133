"""`Content`: what a checkpoint shall hold, whatever container it is written to."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from mappings.arrangement import Arrangement, Shape
from mappings.errors import UserError
from mappings.families import Family
from mappings.families.atoms import Spelled
from mappings.families.family import HF
from mappings.formats.safetensors import DTYPE_BITS
from migrate.weights.containers.expected import Expected, whole
from migrate.weights.containers.states import of_state, state_atom, state_name
from migrate.weights.tensors import Checkpoint, Stored


@dataclass(frozen=True)
class Content:
    """Names, dtypes and atoms of everything that is to be written."""

    family: Family
    config: Mapping[str, Any]
    dtypes: Mapping[str, str]
    """Atom -> safetensors dtype in which it shall be stored, for every atom there is; those of states included."""
    spelling: str = HF
    states: tuple[str, ...] = ()
    """Optimizer states that go along."""
    counters: Mapping[str, tuple[str, Shape]] = field(default_factory=dict)
    """Single numbers of a run that go along: dtype and shape by name."""

    @classmethod
    def of(cls, checkpoint: Checkpoint, spelling: str = HF, cast: str | None = None) -> Content:
        """Everything that a checkpoint holds.

        Args:
            checkpoint: the source.
            spelling: in which it shall be written.
            cast: safetensors dtype for all weights but those that must keep theirs; None keeps all.
        """
        assert checkpoint.family is not None, "a table of weights has no spelling"
        states, counters = checkpoint.extra.get("states", ()), checkpoint.extra.get("counters", {})
        dtypes = {
            piece.atom: source.stored.dtype
            for source in checkpoint.tensors
            for piece in source.stored.arrangement.pieces
        }
        if cast is not None:
            weights = checkpoint.family.spelling(checkpoint.config, HF)
            dtypes |= {a: s.dtype or cast for s in weights for a in s.atoms if a in dtypes}
        numbers = {name: (s.stored.dtype, s.stored.arrangement.shape) for name, s in counters.items()}
        return cls(checkpoint.family, checkpoint.config, dtypes, spelling, tuple(states), numbers)

    def weights_only(self) -> Content:
        """Without what only training needs."""
        return replace(self, states=(), counters={})

    def without(self, checkpoint: Checkpoint) -> list[str]:
        """Atoms of a source that are not written: states and counters that were left out."""
        kept = {state_atom(s, a) for s in ("", *self.states) for a in self.family.atoms(self.config)}
        return [atom for atom in checkpoint.atoms if atom not in kept and atom not in self.counters]

    @cached_property
    def whole(self) -> dict[str, Expected]:
        """Every tensor, uncut, by name; optional ones that are not there are left out."""
        everything = whole(self.family, self.config, self.spelling)
        return {name: expected for name, expected in everything.items() if self.has(expected.spelled)}

    def has(self, spelled: Spelled) -> bool:
        """Whether a tensor is to be written; its atoms are there, all or none."""
        return any(atom in self.dtypes for atom in spelled.atoms)

    def dtype(self, spelled: Spelled, state: str = "") -> str:
        """The one dtype of a tensor's atoms.

        Raises:
            UserError: an atom is not there, or they have several, so one would be changed without being asked for.
        """
        found: dict[str, str] = {}
        for atom in spelled.atoms:
            name = state_atom(state, atom)
            if name not in self.dtypes:
                raise UserError(f"tensor {spelled.name!r} cannot be made: {name} is missing")
            found.setdefault(self.dtypes[name], name)
        if len(found) > 1:
            parts = " and ".join(f"{atom} in {dtype}" for dtype, atom in sorted(found.items()))
            raise UserError(f"tensor {spelled.name!r}: its parts are {parts}; choose one dtype")
        return next(iter(found))

    def stored(
        self, file: str, tensors: Iterable[tuple[Spelled, Arrangement]], style: int, states: Sequence[str] = ("",)
    ) -> Iterator[Stored]:
        """Tensors of a file, and their states.

        Args:
            file: its name.
            tensors: each with its arrangement in this file.
            style: of the names of states, see `states.state_name`.
            states: which of them; "" is the weight itself.
        """
        held = [(spelled, arrangement) for spelled, arrangement in tensors if self.has(spelled)]
        for state in states:
            for spelled, arrangement in held:
                name = state_name(state, spelled.name, style)
                yield Stored(file, name, self.dtype(spelled, state), of_state(arrangement, state))

    def numbers(self, file: str) -> Iterator[Stored]:
        """The counters, for a file."""
        for name, (dtype, shape) in self.counters.items():
            yield Stored(file, name, dtype, Arrangement.of(name, shape))


def aligned(tensors: Iterable[Stored]) -> tuple[Stored, ...]:
    """Storage order in which each tensor starts at a multiple of its item size: wide items first, else as given."""
    return tuple(sorted(tensors, key=lambda stored: -DTYPE_BITS[stored.dtype]))


def nbytes(stored: Stored) -> int:
    """Size of a tensor's data, padding included."""
    return math.prod(stored.arrangement.shape) * DTYPE_BITS[stored.dtype] // 8


def by_size(tensors: Iterable[Stored], limit: int) -> list[list[Stored]]:
    """Consecutive tensors in groups of at most `limit` bytes, or of one larger tensor."""
    groups: list[list[Stored]] = [[]]
    size = 0
    for stored in tensors:
        if groups[-1] and size + nbytes(stored) > limit:
            groups.append([])
            size = 0
        groups[-1].append(stored)
        size += nbytes(stored)
    return groups
