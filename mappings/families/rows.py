"""Rows of a family file, made concrete: the atoms, tensors and parameters of one layer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mappings.arrangement import Arrangement
from mappings.expressions import evaluate
from mappings.families.atoms import Atom, Parameter, Spelled
from mappings.families.patterns import EXPERT, concrete

Row = Mapping[str, Any]


def row_atoms(row: Row, layer: int | None, symbols: Mapping[str, Any]) -> Iterator[Atom]:
    """The atoms that a row names in a layer."""
    symbols = {**symbols, "layer": layer}
    parts = [(part, {**row, **facts}) for part, facts in row.get("parts", {"": {}}).items()]
    shapes = [tuple(evaluate(size, symbols) for size in facts["shape"]) for _, facts in parts]
    units = [evaluate(facts.get("unit", 1), symbols) for _, facts in parts]
    stage = row.get("stage", "first" if row["class"] == "embedding" else "last") if layer is None else ""
    for name, expert in _names(row, layer, symbols):
        for (part, facts), shape, unit in zip(parts, shapes, units, strict=True):
            per_expert = facts.get("per") == "expert"
            for index in range(symbols["experts"]) if per_expert else (None,):
                suffix = f"#{part}" if part else ""
                yield Atom(
                    name=name + (f"{suffix}.{index}" if per_expert else suffix),
                    shape=shape,
                    layer_class=row["class"],
                    cut=facts.get("cut"),
                    unit=unit,
                    padded=facts.get("padded", False),
                    layer=layer,
                    expert=index if per_expert else expert,
                    grouped=facts.get("grouped", False),
                    stage=stage,
                )


def row_tensors(row: Row, layer: int | None, symbols: Mapping[str, Any], optional: str) -> Iterator[Spelled]:
    """The tensors that a row names in a layer, as Hugging Face spells them, in the group `optional`."""
    parts = row.get("parts", {})
    per_expert = [part for part, facts in parts.items() if facts.get("per") == "expert"]
    dtype = row.get("dtype")
    for name, _ in _names(row, layer, symbols):
        if not parts:
            yield Spelled(name, (name,), optional, dtype)
            continue
        single = tuple((part, f"{name}#{part}") for part in parts if part not in per_expert)
        experts = tuple(
            tuple((part, f"{name}#{part}.{index}") for part in per_expert)
            for index in range(symbols["experts"] if per_expert else 0)
        )
        atoms = tuple(atom for group in (single, *experts) for _, atom in group)
        yield Spelled(name, atoms, optional, dtype, None, row["is"], single, experts)


def parameter(spelled: Spelled, atoms: Sequence[Atom], symbols: Mapping[str, Any]) -> Parameter:
    """The parameter of a tensor that Hugging Face spells and the atoms it is made of."""
    first = atoms[0]
    if not spelled.packing:
        return Parameter(first.name, first.shape, first.layer_class, first.cut, first.unit, first.padded, first.layer)
    shapes = {atom.name: atom.shape for atom in atoms}
    whole = spelled.arrangement(lambda name: Arrangement.of(name, shapes[name]), symbols)
    assert whole is not None
    return Parameter(spelled.name, whole.shape, first.layer_class, None, 1, False, first.layer, tuple(atoms))


def _names(row: Row, layer: int | None, symbols: Mapping[str, Any]) -> Iterator[tuple[str, int | None]]:
    """Concrete names of a row in a layer, and the expert each belongs to."""
    name = concrete(row["name"], layer)
    if EXPERT not in name:
        yield name, None
        return
    for expert in range(symbols["experts"]):
        yield name.replace(EXPERT, str(expert)), expert
