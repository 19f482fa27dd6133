"""Spellings: rows that make other tensors of the atoms of a model, in place of those that had the atoms before."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from mappings.families.atoms import Spelled
from mappings.families.patterns import EXPERT, MTP, concrete, has_layer

Row = Mapping[str, Any]


def respelled(
    rows: Sequence[Row],
    known: Mapping[str, Spelled],
    layers: range,
    symbols: Mapping[str, Any],
    present: Callable[[Row, Mapping[str, Any]], bool],
) -> list[Spelled]:
    """The tensors that rows of a spelling make. A row whose atoms the model does not have makes none.

    Args:
        rows: rows with `name`, `of` (part -> atom) and `is`.
        known: atom -> the tensor that has it in the spelling these rows build on.
        layers: indices that `{layer}` takes.
        symbols: values of names in conditions, and the number of `experts`.
        present: whether the model has a row.

    Raises:
        ValueError: the model has only some of a tensor's atoms.
    """
    result: list[Spelled] = []
    for row in rows:
        for layer in layers if has_layer(row["name"]) else (None,):
            if not present(row, {**symbols, "layer": layer}) or (MTP in row["name"] and layer < symbols["layers"]):
                continue
            for expert in range(symbols["experts"]) if EXPERT in row["name"] else (None,):
                result += _spelled(row, known, layer, expert, symbols)
    return result


def replaced(tensors: Sequence[Spelled], made: Sequence[Spelled]) -> list[Spelled]:
    """`tensors` with `made` in the places of those whose atoms they took.

    Raises:
        ValueError: an atom is in two new tensors, or only some atoms of a tensor were taken.
    """
    taken: dict[str, str] = {}
    for spelled in made:
        for atom in spelled.atoms:
            if atom in taken:
                raise ValueError(f"{atom} is in {taken[atom]} and in {spelled.name}")
            taken[atom] = spelled.name
    place: dict[str, int] = {}
    kept: list[tuple[int, Spelled]] = []
    for index, old in enumerate(tensors):
        here = [atom for atom in old.atoms if atom in taken]
        if not here:
            kept.append((index, old))
        elif len(here) != len(old.atoms):
            left = next(atom for atom in old.atoms if atom not in taken)
            raise ValueError(f"{left} of {old.name} is in no new tensor, but {here[0]} is")
        place |= dict.fromkeys(here, index)
    kept += [(min(place[atom] for atom in spelled.atoms), spelled) for spelled in made]
    return [spelled for _, spelled in sorted(kept, key=lambda pair: pair[0])]


def _spelled(
    row: Row, known: Mapping[str, Spelled], layer: int | None, expert: int | None, symbols: Mapping[str, Any]
) -> Iterator[Spelled]:
    of = {"": row["of"]} if isinstance(row["of"], str) else row["of"]
    templates = {part: concrete(template, layer, expert) for part, template in of.items()}
    single = tuple((part, atom) for part, atom in templates.items() if EXPERT not in atom)
    many = [(part, atom) for part, atom in templates.items() if EXPERT in atom]
    experts = tuple(
        tuple((part, atom.replace(EXPERT, str(index))) for part, atom in many)
        for index in range(symbols["experts"] if many else 0)
    )
    name = concrete(row["name"], layer, expert)
    if layer is not None:
        name = name.replace(MTP, str(layer - symbols["layers"]))
    atoms = tuple(atom for group in (single, *experts) for _, atom in group)
    found = [known[atom] for atom in atoms if atom in known]
    if not found:
        return
    if len(found) != len(atoms):
        missing = next(atom for atom in atoms if atom not in known)
        raise ValueError(f"{name}: the model has no {missing}, but other parts of it")
    optional, dtypes = {old.optional for old in found}, {old.dtype for old in found}
    if len(optional) > 1 or len(dtypes) > 1:
        raise ValueError(f"{name}: its parts differ in `optional` or `dtype`")
    packing = "" if isinstance(row["of"], str) else row["is"]
    yield Spelled(name, atoms, optional.pop(), dtypes.pop(), row.get("encoding"), packing, single, experts)
