"""The tensors that a checkpoint should hold: those of a spelling of its family, whole or as one rank has them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mappings.arrangement import Arrangement
from mappings.errors import UserError
from mappings.families import Family
from mappings.families.atoms import Atom, Spelled
from mappings.families.encodings import stored_names
from mappings.families.family import HF
from migrate.weights.containers.states import split_state

MOST_LAYERS, MOST_EXPERTS = 1 << 12, 1 << 18  # of all layers; today's largest models have a fiftieth of it


@dataclass(frozen=True)
class Expected:
    """One tensor of a spelling."""

    spelled: Spelled
    arrangement: Arrangement

    @property
    def name(self) -> str:
        """Its name in the spelling."""
        return self.spelled.name


def check_count(family: Family, config: Mapping[str, Any]) -> None:
    """Refuses a damaged `config.json` before anybody counts to what it says.

    Raises:
        UserError: more layers and experts than any model has.
    """
    layers, experts = family.layer_indices(config).stop, family.dims(config).get("experts", 0)
    if layers > MOST_LAYERS or layers * experts > MOST_EXPERTS:
        raise UserError(f"config.json: {layers} layers with {experts} experts each are more than any model has")


def whole(family: Family, config: Mapping[str, Any], spelling: str) -> dict[str, Expected]:
    """Every tensor of a model, uncut, by name.

    Raises:
        UserError: the family has no such spelling, or `config.json` does not fit.
    """
    shapes = {atom.name: atom.shape for atom in family.atoms(config).values()}
    dims = family.dims(config)
    result = {}
    for spelled in family.spelling(config, spelling):
        try:
            arrangement = spelled.arrangement(lambda atom: Arrangement.of(atom, shapes[atom]), dims)
        except ValueError as error:
            raise UserError(f"config.json: its sizes do not fit each other: {spelled.name}: {error}") from error
        assert arrangement is not None, "every atom is held"
        result[spelled.name] = Expected(spelled, arrangement)
    return result


def names_of(spelled: Spelled) -> Iterator[str]:
    """Names under which a tensor may be stored."""
    if spelled.encoding:
        yield from stored_names(spelled.encoding, spelled.name).values()
    else:
        yield spelled.name


def detect_spelling(
    family: Family,
    config: Mapping[str, Any],
    shapes: Mapping[str, tuple[int, ...] | None],
    where: object,
    given: str | None = None,
) -> str:
    """The spelling that most stored names belong to; among equals, the one with most of the stored shapes.

    Args:
        family: of the model.
        config: its `config.json`.
        shapes: whole shape by stored name; None where it is unknown.
        where: what to name in the message.
        given: the spelling, where somebody knows it.

    Raises:
        UserError: no name is known in any spelling, or two spellings fit that arrange elements differently.
    """
    check_count(family, config)
    if given is not None:
        family.spelling(config, given)
        return given
    stored = {split_state(name)[1] for name in shapes}
    known = {
        spelling: sum(name in stored for spelled in family.spelling(config, spelling) for name in names_of(spelled))
        for spelling in (HF, *family.spellings)
    }
    most = max(known.values())
    if not most:
        some = ", ".join(sorted(stored)[:3]) or "none"
        raise UserError(f"{where}: no tensor has a name of the {family.name} family (found {some})")
    best = [spelling for spelling, count in known.items() if count == most]
    if len(best) == 1:
        return best[0]
    tensors = {spelling: whole(family, config, spelling) for spelling in best}
    fitting = {
        spelling: sum(shapes.get(name) == expected.arrangement.shape for name, expected in some.items())
        for spelling, some in tensors.items()
    }
    best = [spelling for spelling in best if fitting[spelling] == max(fitting.values())]
    for other in best[1:]:
        for name, expected in tensors[best[0]].items():
            rival = tensors[other].get(name)
            if name in stored and rival is not None and rival.arrangement != expected.arrangement:
                raise UserError(
                    f"{where}: {name} is stored as {best[0]} or as {other} has it, and nothing tells which; "
                    "say so (--from-spelling)"
                )
    return best[0]


def padded(expected: Expected, shape: Collection[int], atoms: Mapping[str, Atom]) -> Arrangement | None:
    """The tensor with zero rows behind the vocabulary, if that alone explains a stored shape."""
    atom = atoms[expected.spelled.atoms[0]]
    axis, arrangement = atom.cut, expected.arrangement
    if len(expected.spelled.atoms) > 1 or not atom.padded or axis is None or len(shape) != len(arrangement.shape):
        return None
    longer = list(shape)
    if longer[axis] <= arrangement.shape[axis]:
        return None
    grown = arrangement.pad(axis, longer[axis])
    return grown if grown.shape == tuple(shape) else None
