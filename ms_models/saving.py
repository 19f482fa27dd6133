"""Writes a Hugging Face directory from whole fp32 weights, in the dtypes and files the weights came from."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mappings.arrangement import Arrangement
from mappings.cutting import fill
from mappings.errors import UserError
from mappings.formats import manifest
from mappings.formats.hf_directory import INDEX, SINGLE
from mappings.formats.manifest import fsync_directory
from mappings.formats.safetensors import build_header
from mappings.holdings import Held

NO_SIDE_FILE = (".safetensors", ".bin", ".pt", ".pth", INDEX, manifest.NAME)
WEIGHTS = (".safetensors", ".safetensors.index.json", ".bin", ".bin.index.json")


@dataclass(frozen=True)
class Origin:
    """Where weights were loaded from."""

    directory: Path
    files: Mapping[str, str]
    """File of each tensor within the directory."""
    dtypes: Mapping[str, str]
    """Stored dtype of each tensor, in safetensors' names."""
    tensors: Mapping[str, Arrangement]
    """What each tensor consists of."""
    config: Mapping[str, Any] | None = None
    """`config.json` to write where the directory's own does not fit any more: the model was given a new head."""

    def side_file(self, path: Path) -> bytes:
        """What to write for a file of the directory that holds no weights."""
        if self.config is None or path.name != "config.json":
            return path.read_bytes()
        return (json.dumps(self.config, indent=2) + "\n").encode()

    def side_files(self) -> Iterator[tuple[str, bytes]]:
        """Name and content of what stands beside the weights in a checkpoint: config, tokenizer."""
        for path in sorted(self.directory.iterdir()):
            if path.is_file() and not path.name.endswith(NO_SIDE_FILE) and not path.name.startswith("."):
                yield path.name, self.side_file(path)

    def stored(self, values: Mapping[str, np.ndarray], held: Mapping[str, Held]) -> dict[str, np.ndarray]:
        """The tensors as they are stored, of those in memory, which may be fused and named otherwise.

        Args:
            values: tensors in memory by name.
            held: what each of them consists of.
        """
        owners: dict[str, list[str]] = {}
        for name, one in held.items():
            for piece in one.arrangement.pieces:
                owners.setdefault(piece.atom, []).append(name)
        result = {}
        for name, arrangement in self.tensors.items():
            result[name] = np.zeros(arrangement.shape, np.float32)
            parts = dict.fromkeys(owner for piece in arrangement.pieces for owner in owners[piece.atom])
            for part in parts:
                source = np.ascontiguousarray(values[part])
                fill(result[name], arrangement, source, held[part].arrangement)
        return result


def write_directory(target: Path, origin: Origin, weights: Mapping[str, np.ndarray]) -> None:
    """Writes `weights` and the side files of `origin` to a new directory, which appears only when it is complete.

    Args:
        target: must not exist yet.
        origin: gives each tensor its file and dtype, and the config and tokenizer files to copy.
        weights: whole tensors by name, fp32.

    Raises:
        UserError: the target exists, the origin has gone, or a value does not fit its dtype.
    """
    if target.exists():
        raise UserError(f"{target}: already exists; name a new directory")
    if not origin.directory.is_dir():
        raise UserError(f"{origin.directory}: gone, but its config and tokenizer files are needed to save the model")
    staging = target.with_name(f"{target.name}.tmp{os.getpid()}")
    staging.mkdir(parents=True)
    try:
        names_by_file: dict[str, list[str]] = {}
        for name in weights:
            names_by_file.setdefault(origin.files[name], []).append(name)
        for file, names in names_by_file.items():
            _write_file(staging / file, {name: encode(name, weights[name], origin.dtypes[name]) for name in names})
        if set(names_by_file) != {SINGLE}:
            _write_index(staging, origin, weights)
        for path in sorted(origin.directory.iterdir()):
            if path.is_file() and path.name != manifest.NAME and not path.name.endswith(WEIGHTS):
                (staging / path.name).write_bytes(origin.side_file(path))
        fsync_directory(staging)
        staging.replace(target)
    except BaseException:
        shutil.rmtree(staging)
        raise
    fsync_directory(target.parent)


def encode(name: str, values: np.ndarray, dtype: str) -> tuple[str, tuple[int, ...], bytes]:
    """Dtype, shape and bytes of fp32 `values` rounded (to nearest even) to F32, F16 or BF16.

    Raises:
        UserError: a finite value is too large for the dtype.
    """
    if dtype == "F32":
        return dtype, values.shape, values.astype("<f4").tobytes()
    if dtype == "F16":
        with np.errstate(over="ignore"):  # reported below, with the tensor's name
            stored = values.astype("<f2")
        overflow = np.isinf(stored) & np.isfinite(values)
    else:
        bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
        rounded = (bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) >> 16
        # Adding to a NaN could carry into an infinity; its upper half, made quiet, is a NaN again.
        quiet = (bits >> 16) | np.where(bits & 0xFFFF, np.uint32(0x40), np.uint32(0))
        stored = np.where(np.isnan(values), quiet, rounded).astype("<u2")
        overflow = ((stored & 0x7FFF) == 0x7F80) & np.isfinite(values)
    if overflow.any():
        raise UserError(f"{name}: {int(overflow.sum())} values are too large for {dtype}, the dtype it was loaded from")
    return dtype, values.shape, stored.tobytes()


def _write_file(path: Path, tensors: Mapping[str, tuple[str, tuple[int, ...], bytes]]) -> None:
    # transformers refuses files that do not name their framework
    layout = [(name, dtype, shape) for name, (dtype, shape, _) in tensors.items()]
    header, _ = build_header(layout, {"format": "pt"})
    with path.open("xb") as file:
        file.write(header)
        for _, _, data in tensors.values():
            file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _write_index(directory: Path, origin: Origin, weights: Mapping[str, np.ndarray]) -> None:
    width = {"F32": 4, "F16": 2, "BF16": 2}
    total = sum(values.size * width[origin.dtypes[name]] for name, values in weights.items())
    body = {
        "metadata": {"total_size": total},
        "weight_map": {name: origin.files[name] for name in sorted(weights)},
    }
    (directory / INDEX).write_text(json.dumps(body, indent=2) + "\n", encoding="utf-8")
