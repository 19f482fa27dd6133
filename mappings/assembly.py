"""`Assembly`: a tensor put together from pieces of others that several ranks may have stored alike."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from mappings.arrangement import Arrangement, Placement
from mappings.cutting import Array, meetings, view


class ReplicasDifferError(Exception):
    """Two stored pieces that should be copies of each other are not."""


class Assembly:
    """Fills a tensor box by box; a box that is met again is compared.

    The cuts of one layout either hold the same box of an atom or disjoint ones, so that counting boxes tells whether
    all is there.

    Args:
        target: contiguous, of the shape of `held`; zeros where nothing is stored (padding).
        held: what it consists of.
    """

    def __init__(self, target: Array, held: Arrangement) -> None:
        self.target, self.held = target, held
        self._filled: set[Placement] = set()

    @property
    def missing(self) -> int:
        """Elements that no source has had so far; negative where sources overlap in part."""
        there = sum(math.prod(box.extent) for box in self._filled)
        return self.held.size - self.held.padding - there

    def add(self, source: Array, stored: Arrangement, convert: Callable[[Array], Array] | None = None) -> None:
        """Takes from a tensor what there is of this one.

        Args:
            source: contiguous, of the shape of `stored`.
            stored: what it consists of.
            convert: takes elements of the source to those of the target; None where numpy does.

        Raises:
            ReplicasDifferError: the source has other values for a box than a source before it.
        """
        for to, since in meetings(self.held, stored):
            elements: Array = view(source, since)
            values = np.asarray(elements if convert is None else convert(elements), self.target.dtype)
            place: Array = view(self.target, to)
            if to not in self._filled:
                place[...] = values
                self._filled.add(to)
            elif _bits(place) != _bits(values):
                raise ReplicasDifferError(to.atom)


def holds_any(held: Arrangement, stored: Arrangement) -> bool:
    """Whether the stored tensor has an element of the other one."""
    return any(True for _ in meetings(held, stored))


def needs(wanted: Iterable[Arrangement], stored: Mapping[str, Arrangement]) -> bool:
    """Whether a file with tensors `stored` has an element of any of the others."""
    holders = holders_of(stored)
    return any(holds_any(one, stored[name]) for one in wanted for name in sources_of(one, holders))


def holders_of(consist: Mapping[str, Arrangement]) -> dict[str, list[str]]:
    """Tensors by the atoms in them."""
    holders: dict[str, list[str]] = {}
    for name, arrangement in consist.items():
        for atom in dict.fromkeys(piece.atom for piece in arrangement.pieces):
            holders.setdefault(atom, []).append(name)
    return holders


def sources_of(arrangement: Arrangement, holders: Mapping[str, list[str]]) -> list[str]:
    """Tensors that have an atom in common with this one."""
    return list(dict.fromkeys(name for piece in arrangement.pieces for name in holders.get(piece.atom, ())))


def _bits(values: np.ndarray[Any, Any]) -> bytes:
    return np.ascontiguousarray(values).tobytes()
