"""Which modules return a whole vector per token on every rank, by the facts of the family."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mappings.families import Family, Parameter
from migrate.parity.modules import memory_spelling

TRANSPOSED = ("gpt2",)
"""Families whose matrices are [inputs, outputs]."""


def whole_outputs(family: Family, config: Mapping[str, Any], modules: Sequence[str]) -> list[str]:
    """Those of `modules` whose output is in the residual stream's width, or replicated, under tensor parallelism.

    Left out are column-parallel layers, whose output is cut over the ranks; what holds nothing but such layers; and
    norms inside of attention, which see the heads of a rank.

    Args:
        family: of the model.
        config: its `config.json`.
        modules: by the names of both sides in memory.
    """
    hidden = family.dims(config)["hidden"]
    cut: dict[str, bool] = {}
    for parameter in _in_memory(family, config):
        owner, _, kind = parameter.name.rpartition(".")
        if kind == "weight":
            cut[owner] = _is_cut(parameter, hidden, family.name in TRANSPOSED)
    result = []
    for name in modules:
        if name in cut:
            whole = not cut[name]
        else:
            below = [is_cut for owner, is_cut in cut.items() if owner.startswith(f"{name}.")]
            whole = not below or not all(below)
        if whole:
            result.append(name)
    return result


def _in_memory(family: Family, config: Mapping[str, Any]) -> list[Parameter]:
    """Parameters with the names they have in memory; experts are of no interest here."""
    renamed = {
        spelled.atoms[0]: spelled.name
        for spelled in family.spelling(config, memory_spelling(family))
        if len(spelled.atoms) == 1
    }
    found = []
    for parameter in family.parameters(config):
        name = renamed.get(parameter.name, parameter.name)
        found.append(Parameter(**{**_fields(parameter), "name": name}))
    return found


def _fields(parameter: Parameter) -> dict[str, Any]:
    return {name: getattr(parameter, name) for name in Parameter.__dataclass_fields__}


def _is_cut(parameter: Parameter, hidden: int, transposed: bool) -> bool:
    """Whether tensor-parallel ranks have different parts of what the layer returns."""
    if parameter.layer_class == "embedding":
        return False  # looked-up rows are summed
    if parameter.layer_class == "norm":
        return parameter.shape != (hidden,)
    cuts = {part.cut for part in parameter.parts} or {parameter.cut}
    if cuts == {None}:
        return False
    # A row-parallel layer is cut along its inputs and sums its outputs; a column-parallel one is cut along its outputs.
    axis = next(cut for cut in cuts if cut is not None)
    return axis != (0 if transposed else 1)
