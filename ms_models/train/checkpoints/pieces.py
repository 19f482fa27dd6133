"""Tensors of this rank from the files of any ranks, each of which has pieces of them. Imports no MindSpore."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from mappings.arrangement import Arrangement
from mappings.assembly import Assembly, ReplicasDifferError, holders_of, holds_any, sources_of
from mappings.errors import UserError
from mappings.formats.safetensors import TensorEntry

Arrays = dict[str, np.ndarray]
LISTED = 8


def assemble(
    wanted: Mapping[str, Arrangement],
    owners: Iterable[int],
    consist: Callable[[int], Mapping[str, Arrangement]],
    read: Callable[[int], tuple[Path, list[TensorEntry]]],
    kinds: Sequence[str] = (),
) -> Arrays:
    """fp32 tensors put together bit by bit.

    Files are mapped, so that beside the result only what is copied takes memory; files without a piece are not read.

    Args:
        wanted: tensors by name.
        owners: ranks of the checkpoint that have a file.
        consist: what the tensors in a rank's file consist of.
        read: path, once it is verified, and tensors of that file.
        kinds: names in files and in the result are `<kind>.<name>`, for each of these; without, they are plain.

    Raises:
        UserError: something is missing or misshapen, or ranks that should hold the same do not.
    """
    prefixes = [f"{kind}." for kind in kinds] or [""]
    found = {
        prefix + name: Assembly(np.zeros(arrangement.shape, np.float32), arrangement)
        for prefix in prefixes
        for name, arrangement in wanted.items()
    }
    path = Path()
    for owner in owners:
        stored = consist(owner)
        holders = holders_of(stored)
        pairs = [
            (name, source)
            for name, arrangement in wanted.items()
            for source in sources_of(arrangement, holders)
            if holds_any(arrangement, stored[source])
        ]
        if pairs:
            path, entries = read(owner)
            by_name = {entry.name: entry for entry in entries}
            known = {prefix + name for prefix in prefixes for name in stored}
            if unexpected := [name for name in by_name if name not in known]:
                raise UserError(f"{path}: does not fit the model: {', '.join(unexpected[:LISTED])} unexpected")
            for prefix in prefixes:
                for name, source in pairs:
                    array = mapped(path, by_name, prefix + source, stored[source])
                    try:
                        found[prefix + name].add(array, stored[source])
                    except ReplicasDifferError as error:
                        raise UserError(
                            f"{path}: {prefix}{source} differs from the copy that another rank saved; one of the two "
                            "is wrong, so that this checkpoint cannot be cut anew"
                        ) from error
    if lacking := [name for name, assembly in found.items() if assembly.missing]:
        some = ", ".join(lacking[:LISTED])
        raise UserError(f"{path.parent}: elements of {some} are missing, so the checkpoint does not fit the model")
    return {name: assembly.target for name, assembly in found.items()}


def mapped(path: Path, entries: Mapping[str, TensorEntry], name: str, arrangement: Arrangement) -> np.ndarray:
    """A fp32 tensor of a file, not read yet.

    Raises:
        UserError: it is not there, or not as it should be.
    """
    entry = entries.get(name)
    if entry is None:
        raise UserError(f"{path}: {name} is missing")
    if entry.dtype != "F32" or tuple(entry.shape) != tuple(arrangement.shape):
        raise UserError(f"{path}: {name} is {entry.dtype} {list(entry.shape)} instead of F32 {list(arrangement.shape)}")
    return np.memmap(entry.path, "<f4", "r", offset=entry.offset, shape=tuple(entry.shape))
