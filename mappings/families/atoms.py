"""What a family says about a concrete model: atoms, parameters and spelled tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from mappings.arrangement import Arrangement, Shape
from mappings.families.packing import packed

CLASSES = ("embedding", "attention", "ffn", "lm_head", "norm")


@dataclass(frozen=True, slots=True)
class Atom:
    """The smallest unit that layouts move: one matrix of one expert, the `q` of a fused projection, a norm."""

    name: str
    """As Hugging Face stores it on its own, else `<Hugging Face tensor>#<part>` or `...#<part>.<expert>`."""
    shape: Shape
    layer_class: str
    """What the layer is to a parallel plan: one of `CLASSES`."""
    cut: int | None
    """Axis that tensor parallelism divides; None is a replicated parameter."""
    unit: int
    """Length along `cut` that must stay whole (a head)."""
    padded: bool
    """Whether the rows along `cut` may be padded with zeros (vocabulary)."""
    layer: int | None
    """Index of the decoder layer it belongs to."""
    expert: int | None = None
    """Index of the expert it belongs to."""
    grouped: bool = False
    """Whether several query heads share each unit, so that more ranks than units hold copies (keys and values)."""
    stage: str = ""
    """Pipeline stage of what belongs to no layer: "first" or "last"."""


@dataclass(frozen=True)
class Parameter:
    """One parameter of a concrete model, under its Hugging Face name."""

    name: str
    shape: Shape
    layer_class: str
    """What the layer is to a parallel plan: one of `CLASSES`."""
    cut: int | None
    """Axis that tensor parallelism divides; None is a replicated parameter, or one with `parts`."""
    unit: int
    """Length along `cut` that must stay whole (a head)."""
    padded: bool
    """Whether the rows along `cut` may be padded with zeros (vocabulary)."""
    layer: int | None
    """Index of the decoder layer it belongs to."""
    parts: tuple[Atom, ...] = ()
    """The atoms of a fused parameter: each is cut on its own."""


@dataclass(frozen=True, slots=True)
class Spelled:
    """A tensor under the name that one spelling gives it, and how it is made of atoms."""

    name: str
    atoms: tuple[str, ...]
    """All atoms it is made of."""
    optional: str = ""
    """Name of a group of tensors that a checkpoint holds all of or none of; empty where the tensor must be there."""
    dtype: str | None = None
    """The dtype it keeps whatever the rest is cast to (`F32` of a router's correction bias)."""
    encoding: str | None = None
    """Low-precision form in which it is stored in several tensors, a name of `mappings.formats.encodings`."""
    packing: str = ""
    """How its parts are packed (`mappings/families/packing.py`); empty where it is one atom as it is."""
    single: tuple[tuple[str, str], ...] = ()
    """Part and atom of what there is one of."""
    experts: tuple[tuple[tuple[str, str], ...], ...] = ()
    """For each expert, part and atom."""

    def arrangement(self, local: Callable[[str], Arrangement | None], dims: Mapping[str, int]) -> Arrangement | None:
        """The tensor as one rank (or a file for all of them) has it.

        Args:
            local: gives the whole of an atom, or a rank's slice of it; None where the rank does not hold it.
            dims: dimensions, those of the rank where `local` gives slices.

        Returns:
            None where none of its atoms is held.

        Raises:
            ValueError: only some atoms of it, or of an expert, are held; or their shapes do not fit.
        """
        if not self.packing:
            return local(self.atoms[0])
        single = self._held(self.single, local)
        experts = [parts for expert in self.experts if (parts := self._held(expert, local))]
        if self.single and not single:
            return None
        if self.experts and not experts:
            return None
        return packed(self.packing, single, experts, dims)

    def _held(
        self, parts: tuple[tuple[str, str], ...], local: Callable[[str], Arrangement | None]
    ) -> dict[str, Arrangement]:
        found = {part: local(atom) for part, atom in parts}
        held = {part: arrangement for part, arrangement in found.items() if arrangement is not None}
        if held and len(held) != len(found):
            raise ValueError(f"{self.name}: of its parts, only {', '.join(held)} are held together")
        return held
