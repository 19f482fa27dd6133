"""Which tensor of the converted module each tensor of the original becomes, by the converter's table."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from mappings.formats.weights_table import Class, Tensor

_INDEX = re.compile(r"\\\{(\w)\\\}")


@dataclass(frozen=True)
class Naming:
    """Names of the converted module by those of the original.

    Attributes:
        converted: for every tensor of the original's state.
        permutations: by name in the original: axes of the source in the order of the converted tensor.
        strange: tensors of the original that the report does not know, though it says it knows all.
        lacking: tensors that the report says are always there, and are not.
    """

    converted: dict[str, str]
    permutations: dict[str, tuple[int, ...]] = field(default_factory=dict)
    strange: tuple[str, ...] = ()
    lacking: tuple[str, ...] = ()


def naming(entry: Class | None, names: Iterable[str]) -> Naming:
    """The names that a state has in the converted module.

    A class that the table has no entry for, or only a part of, keeps its names: converted code does by design.

    Args:
        entry: of the module's class.
        names: the state in the original.
    """
    state = list(names)
    if entry is None:
        return Naming({name: name for name in state})
    patterns = [(_pattern(tensor.name), tensor) for tensor in entry.tensors if tensor.persistent]
    converted: dict[str, str] = {}
    permutations: dict[str, tuple[int, ...]] = {}
    strange: list[str] = []
    met: set[int] = set()
    for name in state:
        converted[name] = name
        found = next(((m, tensor) for pattern, tensor in patterns if (m := pattern.fullmatch(name))), None)
        if found is None:
            strange.append(name)
            continue
        matched, tensor = found
        met.add(id(tensor))
        converted[name] = tensor.converted.format_map(matched.groupdict())
        if tensor.permutation is not None:
            permutations[name] = tensor.permutation
    if entry.not_known:
        return Naming(converted, permutations)
    lacking = tuple(tensor.name for _, tensor in patterns if _is_always_there(tensor) and id(tensor) not in met)
    return Naming(converted, permutations, tuple(strange), lacking)


def _is_always_there(tensor: Tensor) -> bool:
    return not tensor.when and "{" not in tensor.name


def _pattern(name: str) -> re.Pattern[str]:
    """A name with `{i}` for indices; the same index twice is the same number."""
    seen: set[str] = set()

    def group(found: re.Match[str]) -> str:
        index = found[1]
        if index in seen:
            return f"(?P={index})"
        seen.add(index)
        return rf"(?P<{index}>\d+)"

    return re.compile(_INDEX.sub(group, re.escape(name)))
