"""The values of the counters of a run, for containers that keep them outside tensors."""

from __future__ import annotations

from typing import Any

import numpy as np

from mappings.errors import UserError
from mappings.formats.iteration import COMMON_KEYS
from migrate.weights.decoding.tables import from_bf16
from migrate.weights.tensors import Checkpoint, SourceTensor

NUMPY = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1",
    "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "u1", "BOOL": "?",
}  # fmt: skip
"""Dtypes of counters, with what holds their bytes; MindSpore has a name for each."""


def common_values(checkpoint: Checkpoint) -> dict[str, Any]:
    """What `common.json` shall say of a run: what that of the source says, else its counters.

    Raises:
        UserError: a file became shorter than its header says.
    """
    values = {key: value for key, value in checkpoint.extra.get("common", {}).items() if key in COMMON_KEYS}
    for name, source in checkpoint.extra.get("counters", {}).items():
        if name in COMMON_KEYS and name not in values:
            values[name] = _number(source)
    return values


def _number(source: SourceTensor) -> float | int:
    """The one number of a counter."""
    dtype = source.stored.dtype
    kind = np.dtype(NUMPY[dtype])
    with source.path.open("rb") as file:
        file.seek(source.offset)
        data = file.read(kind.itemsize)
    if len(data) < kind.itemsize:
        raise UserError(f"{source.path}: tensor {source.stored.name!r}: the file became shorter")
    number = np.frombuffer(data, kind)
    value: float | int = (from_bf16(number.view(np.uint8)) if dtype == "BF16" else number)[0].item()
    return value
