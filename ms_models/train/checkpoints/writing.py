"""What a rank puts into a checkpoint, on its way to the disk. Imports no MindSpore: a thread of its own may do it."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from mappings.errors import UserError
from mappings.formats.manifest import FileRecord, Manifest, fsync_directory, hash_file, weights_file
from mappings.formats.safetensors import build_header
from mappings.layout import ParallelLayout

RECORDS = ".records-rank{:05d}.json"
"""In the staging directory: size and digest of the files of a rank, until the manifest has them."""


@dataclass(frozen=True)
class Contents:
    """Files of one rank, in memory."""

    tensors: Mapping[str, Mapping[str, np.ndarray]] = field(default_factory=dict)
    """fp32 tensors of each safetensors file."""
    small: Mapping[str, bytes] = field(default_factory=dict)
    """Other files whole."""

    @property
    def bytes(self) -> int:
        """About what they take on the disk and, where they are copies, in memory."""
        arrays = (array for tensors in self.tensors.values() for array in tensors.values())
        return sum(array.nbytes for array in arrays) + sum(map(len, self.small.values()))


def clear(staging: Path) -> None:
    """Makes an empty directory to write to."""
    if staging.exists():
        shutil.rmtree(staging)
    staging.mkdir(parents=True)


def write_rank(staging: Path, rank: int, contents: Contents) -> None:
    """Writes the files of a rank and their records, all of it on the disk when this returns.

    Digests are of what was in memory, so that a later comparison also covers the way to the disk.
    """
    records = {name: write(staging / name, data) for name, data in contents.small.items()}
    for name, tensors in contents.tensors.items():
        header, _ = build_header([(key, "F32", value.shape) for key, value in tensors.items()], {"format": "pt"})
        arrays = (np.ascontiguousarray(value, "<f4").reshape(-1).view(np.uint8).data for value in tensors.values())
        records[name] = write(staging / name, header, *arrays)
    body = {name: [record.bytes, record.sha256] for name, record in records.items()}
    write(staging / RECORDS.format(rank), json.dumps(body).encode())
    fsync_directory(staging)


def write_manifest(
    staging: Path, family: str, layout: ParallelLayout, versions: Mapping[str, str], training: Mapping[str, Any]
) -> None:
    """Completes the staging directory once every rank has written: the records become the manifest.

    Raises:
        OSError: a rank's file is missing or not of the size its rank wrote.
    """
    files: dict[str, FileRecord] = {}
    records = [staging / RECORDS.format(rank) for rank in range(layout.world_size)]
    for path in records:
        own = {name: FileRecord(*record) for name, record in json.loads(path.read_bytes()).items()}
        assert not set(own) & set(files), f"two ranks wrote {set(own) & set(files)}"
        files |= own
    for name, record in files.items():
        if (size := (staging / name).stat().st_size) != record.bytes:
            raise OSError(None, f"{size} bytes are there of {record.bytes} written", str(staging / name))
    for path in records:
        path.unlink()
    Manifest(
        family=family,
        layout=layout,
        weights={rank: weights_file(layout.weight_owner(rank)) for rank in range(layout.world_size)},
        files=dict(sorted(files.items())),
        versions=dict(versions),
        training=dict(training),
    ).write(staging)


def write(path: Path, *pieces: bytes | memoryview) -> FileRecord:
    """Writes a file and has it on the disk; gives size and digest of the pieces."""
    digest, size = hashlib.sha256(), 0
    with path.open("wb") as file:
        for piece in pieces:
            file.write(piece)
            digest.update(piece)
            size += len(piece)
        file.flush()
        os.fsync(file.fileno())
    return FileRecord(size, digest.hexdigest())


def verified(directory: Path, manifest: Manifest, name: str) -> Path:
    """A file of a checkpoint whose size and hash were compared.

    Raises:
        UserError: it is missing or damaged.
    """
    path, record = directory / name, manifest.files.get(name)
    if record is None or not path.is_file():
        raise UserError(f"{path}: missing, so this checkpoint cannot be resumed with this layout")
    if hash_file(path) != record:
        raise UserError(f"{path}: damaged, its size or SHA-256 is not the manifest's")
    return path
