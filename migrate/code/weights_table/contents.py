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
        """Adds a tensor; one of the same name was assigned before, or on a branch that excludes this one."""
        same = (
            place
            for place, known in enumerate(self.tensors)
            if known.name == tensor.name and not set(known.when) & set(map(opposite, tensor.when))
        )
        place = next(same, None)
        if place is None:
            self.tensors.append(tensor)
        elif not tensor.when:
            others = [known for known in self.tensors[place:] if known.name != tensor.name]
            self.tensors[place:] = [tensor, *others]
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


def opposite(condition: str) -> str:
    """`not (c)` of `c`, and the other way round."""
    negated = condition.startswith("not (") and condition.endswith(")")
    return condition.removeprefix("not (")[:-1] if negated else f"not ({condition})"
