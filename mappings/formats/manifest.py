"""`manifest.json` of a sharded checkpoint directory: what is in it, for which layout, with a SHA-256 per file.

The weight converter and the runner write the same format, so each reads what the other wrote. A directory without a
manifest is not a checkpoint: the manifest is written last.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from mappings.errors import UserError
from mappings.formats.hf_directory import read_json
from mappings.layout import ParallelLayout

NAME = "manifest.json"
LATEST = "LATEST"  # in a run directory: the name of its newest checkpoint
FORMAT = "msmigrate-sharded-1"
CHUNK = 1 << 20
DIGEST = "digest"
"""Of the manifest itself where it holds the state of a run: one wrong digit there would be another position or step."""
SHA256 = re.compile("[0-9a-f]{64}")


def weights_file(rank: int) -> str:
    """Name of the weights of a rank (of the owner, where replicas share one file)."""
    return f"model-rank{rank:05d}.safetensors"


def optimizer_file(rank: int) -> str:
    """Name of the optimizer state of a rank."""
    return f"optimizer-rank{rank:05d}.safetensors"


def random_file(rank: int) -> str:
    """Name of the random state of a rank of a run."""
    return f"random-rank{rank:05d}.json"


@dataclass(frozen=True)
class FileRecord:
    """Size and digest of one file."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """Contents of `manifest.json`."""

    family: str
    layout: ParallelLayout
    weights: dict[int, str]
    """Rank to weights file; replicas name their owner's."""
    files: dict[str, FileRecord]
    """Every file of the directory but the manifest."""
    versions: dict[str, str]
    """Versions of what wrote it."""
    source: dict[str, Any] = field(default_factory=dict)
    """Where converted weights came from: per source tensor its file and dtype, and the original index."""
    training: dict[str, Any] = field(default_factory=dict)
    """State of a run: step, tokens, data position, RNG. Empty for converted weights."""

    def write(self, directory: Path) -> None:
        """Writes the manifest atomically: temporary name, fsync, rename, fsync of the directory."""
        body = {"format": FORMAT, **asdict(self)}
        if self.training:
            body[DIGEST] = _digest(body)
        target = directory / NAME
        temporary = target.with_suffix(f".tmp{os.getpid()}")
        with temporary.open("w", encoding="utf-8") as file:
            file.write(json.dumps(body, indent=1, sort_keys=True) + "\n")
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
        fsync_directory(directory)

    @classmethod
    def read(cls, directory: Path) -> Manifest:
        """The manifest of a directory.

        Raises:
            UserError: no directory, no manifest, or one this version cannot read.
        """
        if not directory.is_dir():
            raise UserError(f"{directory}: no such directory")
        path = directory / NAME
        if not path.is_file():
            latest = directory / LATEST
            hint = (
                f"; it is a run, give one of its checkpoints: {latest.read_text().strip()}" if latest.is_file() else ""
            )
            raise UserError(f"{directory}: no {NAME}, so this is no complete msmigrate checkpoint{hint}")
        body = read_json(path)
        if body.get("format") != FORMAT:
            raise UserError(f"{path}: format is not {FORMAT!r}")
        digest = body.pop(DIGEST, None)
        if digest is not None and body.get("training") and digest != _digest(body):
            raise UserError(f"{path}: damaged, its contents do not have the digest that stands in it")
        try:
            manifest = cls(
                family=body["family"],
                layout=ParallelLayout.from_dict(body["layout"]),
                weights={int(rank): file for rank, file in body["weights"].items()},
                files={name: FileRecord(**record) for name, record in body["files"].items()},
                versions=body["versions"],
                source=body["source"],
                training=body["training"],
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UserError(f"{path}: malformed ({error!r})") from error
        if problem := manifest._problem():
            raise UserError(f"{path}: malformed ({problem})")
        return manifest

    def _problem(self) -> str | None:
        """What is inconsistent, or None. File names come from outside: none may leave the directory."""
        if not isinstance(self.family, str):
            return f"family is {self.family!r}"
        for what in ("versions", "source", "training"):
            if not isinstance(getattr(self, what), dict):
                return f"{what} is no object"
        for name, record in self.files.items():
            if not name.isprintable() or Path(name).is_absolute() or not name.strip("/.") or ".." in Path(name).parts:
                return f"file {name!r} is outside the directory"
            if type(record.bytes) is not int or record.bytes < 0 or not SHA256.fullmatch(str(record.sha256)):
                return f"file {name!r}: no size and SHA-256"
        if set(self.weights) != set(range(self.layout.world_size)):
            return f"weights are given for ranks {sorted(self.weights)}, the layout has {self.layout.world_size}"
        for rank, file in self.weights.items():
            if not isinstance(file, str) or file not in self.files:
                return f"rank {rank}: weights file {file!r} is not among the files"
            if file != self.weights[self.layout.weight_owner(rank)]:
                return f"rank {rank}: weights file {file!r} is not that of its owner"
        return None


def _digest(body: Mapping[str, Any]) -> str:
    """SHA-256 of what the text says, however it is laid out."""
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def hash_file(path: Path) -> FileRecord:
    """Size and SHA-256 of a file."""
    digest = hashlib.sha256()
    size = 0
    buffer = memoryview(bytearray(CHUNK))
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            digest.update(buffer[:count])
            size += count
    return FileRecord(size, digest.hexdigest())


def fsync_directory(directory: Path) -> None:
    """Makes renames inside `directory` durable."""
    fd = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def damaged_files(directory: Path, manifest: Manifest) -> list[str]:
    """One line per file that is missing or differs from its record; empty when the checkpoint is whole."""
    problems = []
    for name, record in sorted(manifest.files.items()):
        path = directory / name
        if not path.is_file():
            problems.append(f"{name}: missing")
        elif (found := hash_file(path)) != record:
            what = f"{found.bytes} bytes, expected {record.bytes}" if found.bytes != record.bytes else "SHA-256 differs"
            problems.append(f"{name}: {what}")
    return problems
