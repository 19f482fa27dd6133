"""The modules of a model as a tree, in the order of computation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

ROOT = ""
"""The model itself; what it computes outside its modules belongs to it."""


@dataclass(frozen=True)
class Tree:
    """Parents and children by name."""

    parents: dict[str, str]
    children: dict[str, list[str]]
    """Of each module and of `ROOT`, in the order of computation."""

    @classmethod
    def of(cls, names: Sequence[str]) -> Tree:
        """The tree of recorded modules.

        Args:
            names: in the order in which their computation ended, so that a module stands behind what it contains.
        """
        known = set(names)
        parents = {name: _parent(name, known) for name in names}
        children: dict[str, list[str]] = {ROOT: [], **{name: [] for name in names}}
        for name in names:  # siblings run one after the other, so the order of their ends is that of their beginnings
            children[parents[name]].append(name)
        return cls(parents, children)

    def walk(self, name: str = ROOT, depth: int = 0) -> Iterator[tuple[str, int]]:
        """(module, depth) of everything below a module, each before its children."""
        for child in self.children[name]:
            yield child, depth
            yield from self.walk(child, depth + 1)

    def before(self, name: str) -> str | None:
        """The sibling that is computed before a module."""
        siblings = self.children[self.parents[name]]
        place = siblings.index(name)
        return siblings[place - 1] if place else None


def _parent(name: str, known: set[str]) -> str:
    while "." in name:
        name = name.rpartition(".")[0]
        if name in known:
            return name
    return ROOT


def title(name: str) -> str:
    """How a module is called in messages."""
    return name or "the model"
