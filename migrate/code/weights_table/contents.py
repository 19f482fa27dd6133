"""What objects of a module class hold: parameters and buffers by name, as far as their constructors say."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from mappings.formats.weights_table import NotKnown, Tensor, Tie


@dataclass
class Contents:
    """What objects of a class hold, while its constructor is being read."""

    tensors: list[Tensor] = field(default_factory=list)
    repeated: dict[str, str] = field(default_factory=dict)
    tied: list[Tie] = field(default_factory=list)
    unknown: list[NotKnown] = field(default_factory=list)

    def add(self, tensor: Tensor) -> None:
        """Adds a tensor; a name that is there already was assigned on another branch, or again."""
        place = next((n for n, known in enumerate(self.tensors) if known.name == tensor.name), None)
        if place is None:
            self.tensors.append(tensor)
        elif not tensor.when:
            self.tensors[place] = tensor
        else:
            old = self.tensors[place]
            shape = old.shape if old.shape == tensor.shape else None
            dtype = old.dtype if old.dtype == tensor.dtype else None
            self.tensors[place] = replace(old, shape=shape, dtype=dtype, when=())

    def tie(self, name: str, same_as: str, when: tuple[str, ...]) -> None:
        """Says that two names are one tensor."""
        self.tied.append(Tie(name, same_as, when))

    def not_known(self, source: str, what: str) -> None:
        """Says what cannot be read at a place (`file:line`)."""
        self.unknown.append(NotKnown(source, what))
