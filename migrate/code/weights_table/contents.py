"""What objects of a module class hold: parameters and buffers by name, as far as their constructors say."""

from __future__ import annotations

from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class Tensor:
    """A parameter or buffer by its name below a module."""

    name: str
    shape: tuple[str, ...] | None
    """Source texts in the words of the constructor's arguments; None: cannot be read off."""
    layout: str
    kind: str
    persistent: bool
    when: tuple[str, ...]
    """Conditions under which it exists."""
    source: str
    """`file:line`."""


@dataclass
class Contents:
    """What objects of a class hold."""

    tensors: list[Tensor] = field(default_factory=list)
    repeated: dict[str, str] = field(default_factory=dict)
    """Index in names (`{i}`) -> how often, as a source text."""
    tied: list[tuple[str, str, tuple[str, ...]]] = field(default_factory=list)
    """Name, the name whose tensor it is, conditions."""
    unknown: list[tuple[str, str]] = field(default_factory=list)
    """`file:line`, and what is not known there."""

    def add(self, tensor: Tensor) -> None:
        """Adds a tensor; a name that is there already was assigned on another branch, or again."""
        place = next((n for n, known in enumerate(self.tensors) if known.name == tensor.name), None)
        if place is None:
            self.tensors.append(tensor)
        elif not tensor.when:
            self.tensors[place] = tensor
        else:
            old = self.tensors[place]
            self.tensors[place] = replace(old, shape=old.shape if old.shape == tensor.shape else None, when=())
