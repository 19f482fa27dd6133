"""What a checkpoint lacks or has too much, from names, shapes and dtypes alone: no tensor is read."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from mappings.families import Family
from mappings.formats.safetensors import TensorEntry
from mappings.stored import Stored

READABLE = ("F32", "F16", "BF16")
"""Formats that models are loaded from."""
LISTED = 8  # names shown per kind of mismatch


def mismatches(
    entries: Mapping[str, TensorEntry],
    stored: Stored,
    family: Family,
    config: Mapping[str, Any],
    needed: Collection[str] | None = None,
) -> list[str]:
    """One text for each kind of mismatch between the tensors that are there and those that should be.

    Args:
        entries: tensors that are there, by name.
        stored: tensors that should be.
        family: of the model.
        config: its `config.json`.
        needed: of those that should be, the ones that are read; None: all.
    """
    expected = stored.tensors
    there = [name for name in expected if name in entries]
    kinds = {
        "missing": [name for name in expected if name not in entries and (needed is None or name in needed)],
        "unexpected": [name for name in entries if name not in expected and not family.is_ignored(name, config)],
        "wrong shape": [
            f"{name} {list(entries[name].shape)} instead of {list(expected[name].shape)}"
            for name in there
            if entries[name].shape != expected[name].shape
        ],
        f"dtype is none of {', '.join(READABLE)}": [
            f"{name} {entries[name].dtype}" for name in there if entries[name].dtype not in READABLE
        ],
    }
    return [f"{kind}: {_some(names)}" for kind, names in kinds.items() if names]


def _some(names: list[str]) -> str:
    rest = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return ", ".join(names[:LISTED]) + rest
