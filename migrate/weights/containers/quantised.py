"""Which decoder reads a tensor that is stored in low precision, from the names and headers of its parts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mappings.errors import UserError
from mappings.families import Family
from mappings.families.encodings import stored_names
from mappings.formats.safetensors import TensorEntry
from migrate.weights.containers.expected import Expected
from migrate.weights.decoding.fp8 import BlockFp8
from migrate.weights.decoding.mxfp4 import Mxfp4
from migrate.weights.tensors import Decoder, Part


def decoder(
    family: Family, config: Mapping[str, Any], entries: Mapping[str, TensorEntry], expected: Expected
) -> tuple[Decoder, str]:
    """The decoder of a tensor, and the dtype it gives.

    Raises:
        UserError: a part is missing, or the parts and the shape expected from `config.json` do not fit.
    """
    made: Decoder
    encoding = expected.spelled.encoding or next(
        kind
        for kind in family.encodings
        if any(name in entries for name in stored_names(kind, expected.name).values() if name != expected.name)
    )
    parts = {}
    for role, name in stored_names(encoding, expected.name).items():
        if name not in entries:
            raise UserError(f"{name} is missing, without which the other parts mean nothing")
        parts[role] = _part(entries[name])
    if encoding == "mxfp4":
        made = Mxfp4(parts["blocks"], parts["scales"])
        shape = made.shape
    else:
        made = BlockFp8(parts["values"], parts["scales"], _block(config, parts["scales"]))
        shape = parts["values"].shape
    if shape != expected.arrangement.shape:
        raise UserError(f"shape {list(shape)}, {list(expected.arrangement.shape)} expected from config.json")
    return made, "BF16"


def _part(entry: TensorEntry) -> Part:
    return Part(entry.path, entry.name, entry.dtype, entry.shape, entry.offset, entry.nbytes)


def _block(config: Mapping[str, Any], scales: Part) -> tuple[int, int]:
    settings = config.get("quantization_config")
    block = settings.get("weight_block_size") if isinstance(settings, dict) else None
    if not isinstance(block, list) or len(block) != 2 or not all(type(size) is int and size > 0 for size in block):
        raise UserError(
            f"{scales.name} needs quantization_config.weight_block_size in config.json, two sizes; found {block!r}"
        )
    return block[0], block[1]
