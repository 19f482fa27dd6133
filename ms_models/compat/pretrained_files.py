"""Checkpoint directories of transformers: which files they have, what is in them, and writing them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mindspore import Tensor

from . import serialization
from .safetensors_files import SafetensorsFile, nbytes, save_safetensors

_UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


def weight_files(directory: Path, variant: str | None = None) -> list[Path]:
    """The files with weights: one, or those that an index names; safetensors before `pytorch_model.bin`.

    Raises:
        OSError: no directory, no weights in it, or a file of the index is missing.
    """
    if not directory.is_dir():
        raise OSError(
            f"{directory}: not a directory; download the model first (`hf download NAME --local-dir DIRECTORY`)"
        )
    infix = f".{variant}" if variant else ""
    for stem, suffix in (("model", "safetensors"), ("pytorch_model", "bin")):
        single, index = directory / f"{stem}{infix}.{suffix}", directory / f"{stem}.{suffix}.index{infix}.json"
        if single.is_file():
            return [single]
        if index.is_file():
            names = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
            files = [directory / name for name in sorted(set(names))]
            if missing := [file.name for file in files if not file.is_file()]:
                raise OSError(f"{directory}: {missing[0]} is missing, which {index.name} names")
            return files
    raise OSError(f"{directory}: neither model{infix}.safetensors nor pytorch_model{infix}.bin, nor an index of them")


def read_weights(files: list[Path]) -> dict[str, Tensor]:
    """All tensors of the files by name."""
    found: dict[str, Tensor] = {}
    for file in files:
        if file.suffix == ".safetensors":
            source = SafetensorsFile(file)
            found.update({name: source.tensor(name) for name in source})
        else:
            found.update(serialization.load(str(file)))
    return found


def write_weights(
    directory: Path, state: Mapping[str, Tensor], max_shard_size: int | str, variant: str | None = None
) -> None:
    """Write `model.safetensors`, or shards of at most `max_shard_size` and an index; shards from before are removed."""
    stem = f"model.{variant}" if variant else "model"
    shards = list(_shards(state, _bytes_of(max_shard_size)))
    names = [f"{stem}.safetensors"]
    if len(shards) > 1:
        names = [f"{stem}-{number:05d}-of-{len(shards):05d}.safetensors" for number in range(1, len(shards) + 1)]
    for old in directory.glob(f"{stem}-*.safetensors"):
        if old.name not in names and re.fullmatch(re.escape(stem) + r"-\d{5}-of-\d{5}\.safetensors", old.name):
            old.unlink()
    for name, shard in zip(names, shards, strict=True):
        save_safetensors(directory / name, shard, {"format": "pt"})
    if len(shards) > 1:
        total = sum(nbytes(value) for value in state.values())
        weight_map = {key: name for name, shard in zip(names, shards, strict=True) for key in shard}
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        infix = f".{variant}" if variant else ""
        path = directory / f"model.safetensors.index{infix}.json"
        path.write_text(json.dumps(index, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _shards(state: Mapping[str, Tensor], limit: int) -> Iterator[dict[str, Tensor]]:
    """Groups in the order of the state; a tensor over the limit has one of its own."""
    current: dict[str, Tensor] = {}
    size = 0
    for name, value in state.items():
        if nbytes(value) > limit:
            yield {name: value}
            continue
        if current and size + nbytes(value) > limit:
            yield current
            current, size = {}, 0
        current[name] = value
        size += nbytes(value)
    if current or not state:
        yield current


def _bytes_of(size: int | str) -> int:
    if isinstance(size, int):
        return size
    number, unit = size[:-2].strip(), size[-2:].upper()
    if unit not in _UNITS or not re.fullmatch(r"\d+(\.\d+)?", number):
        raise ValueError(f"max_shard_size {size!r} is no size; write a number of bytes, or e.g. '5GB'")
    return int(float(number) * _UNITS[unit])


def config_dtype(kind: Any) -> str:
    """A data type as `config.json` writes it."""
    return str(kind).rpartition(".")[2].lower()
