"""Notes on dtypes: what differs among the tensors of a checkpoint, or from its `config.json`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from migrate.report import Finding
from migrate.weights.codes import finding
from migrate.weights.tensors import SourceTensor

NAMES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "float64": "F64"}


def dtype_notes(config: Mapping[str, Any], tensors: tuple[SourceTensor, ...]) -> list[Finding]:
    """The notes; none is an error."""
    counts = Counter(tensor.stored.dtype for tensor in tensors)
    text = ", ".join(f"{dtype} ({count})" for dtype, count in sorted(counts.items()))
    notes = [finding("W007", f"dtypes {text}")] if len(counts) > 1 else []
    key = "dtype" if "dtype" in config else "torch_dtype"
    stated = NAMES.get(str(config.get(key)))
    if stated is not None and counts and stated not in counts:
        message = f"{key} is {config[key]!r}, the tensors are {text}"
        notes.append(finding("W008", message, file="config.json", field=key))
    return notes
