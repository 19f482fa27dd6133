"""Weights of a directory as both sides hold them in memory, read without a framework."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import numpy as np

from mappings.assembly import Assembly, holders_of, sources_of
from mappings.errors import UserError
from mappings.families import family_for_config
from mappings.formats.hf_directory import read_config, read_tensors
from mappings.layout import ParallelLayout
from mappings.rank_cuts import RankCuts
from mappings.stored import recognise
from migrate.parity.modules import memory_spelling

DTYPES = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}


def stored_weights(directory: Path, names: Collection[str]) -> dict[str, np.ndarray]:
    """Some weights in fp32, put together from the tensors that the directory has.

    Args:
        directory: Hugging Face model directory.
        names: of weights in memory.

    Raises:
        UserError: a weight has no or only some of its tensors there, or one of another dtype than F32, F16 and BF16.
    """
    if not names:
        return {}
    config = read_config(directory)
    family = family_for_config(config, str(directory / "config.json"))
    entries = read_tensors(directory)
    stored = recognise(family, config, {name: entry.shape for name, entry in entries.items()}, directory)
    holders = holders_of(stored.tensors)
    whole = RankCuts(family, config, ParallelLayout(), memory_spelling(family)).tensors(0)
    wanted = {spelled.name: arrangement for spelled, arrangement in whole if spelled.name in names}
    result = {}
    for name, arrangement in wanted.items():
        piece = Assembly(np.zeros(arrangement.shape, np.float32), arrangement)
        for source in sources_of(arrangement, holders):
            if (entry := entries.get(source)) is None:
                continue
            if entry.dtype not in DTYPES:
                raise UserError(f"{entry.path}: {source} is {entry.dtype}; parity reads F32, F16 and BF16")
            values = np.memmap(entry.path, DTYPES[entry.dtype], "r", offset=entry.offset, shape=entry.shape)
            piece.add(_widened(values), stored.tensors[source])
        if piece.missing:
            raise UserError(f"{directory}: {piece.missing} of {arrangement.size} elements of {name} are not stored")
        result[name] = piece.target
    return result


def _widened(values: np.ndarray) -> np.ndarray:
    """fp32; the bits of a bf16 (read as uint16) are the upper half of it."""
    if values.dtype.kind == "u":
        return (values.astype(np.uint32) << 16).view(np.float32)
    return np.array(values, np.float32)
