"""`config.json` of what a conversion writes: true of the tensors beside it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from migrate.weights.dtype_notes import NAMES
from migrate.weights.tensors import Checkpoint

DTYPE_KEYS = ("dtype", "torch_dtype")
"""Now, and before transformers 5."""
QUANTISATION = "quantization_config"


def configuration(checkpoint: Checkpoint, cast: str | None = None) -> dict[str, Any]:
    """That of the source without a quantisation that was undone, and with the dtype of a cast."""
    config = dict(checkpoint.config)
    if any(source.decoder is not None for source in checkpoint.tensors):
        config.pop(QUANTISATION, None)
    if cast is not None:
        key = DTYPE_KEYS["torch_dtype" in config]
        config[key] = next(name for name, dtype in NAMES.items() if dtype == cast)
    return config


def is_configuration(found: Mapping[str, Any], checkpoint: Checkpoint, *, cast: bool) -> bool:
    """Whether a `config.json` is one that a conversion of a checkpoint writes, to any dtype where `cast`."""
    before, after = (
        {key: value for key, value in config.items() if not (cast and key in DTYPE_KEYS)}
        for config in (configuration(checkpoint), found)
    )
    return before == after
