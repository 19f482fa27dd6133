"""Container `hf`: a Hugging Face directory, as transformers saves it; pickled weights are read, too.

A record of the files of a source lets a later conversion back give the very same files.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from mappings.errors import UserError
from mappings.families import family_for_config
from mappings.families.encodings import ENCODINGS
from mappings.families.family import HF
from mappings.formats.hf_directory import INDEX, SINGLE, HfFile, HfWeights, read_config, read_weights
from mappings.formats.safetensors import DTYPE_BITS, TensorEntry
from migrate.weights.containers.account import Account, Held
from migrate.weights.containers.content import Content, aligned, by_size, nbytes
from migrate.weights.containers.expected import detect_spelling, whole
from migrate.weights.containers.state_dict import PICKLE_INDEX, PICKLE_SINGLE, Entry, read_state_dict
from migrate.weights.containers.states import TORCH
from migrate.weights.containers.stored_files import SPELLING
from migrate.weights.tensors import Checkpoint, Stored, TargetFile

NAME = "hf"
SHARD_BYTES = 5_000_000_000
SUFFIXES = tuple(suffix for roles in ENCODINGS.values() for suffix in roles.values() if suffix)


def read(directory: Path, key: str | None = None, spelling: str | None = None) -> Checkpoint:
    """A model directory, from its headers.

    Args:
        directory: with `config.json` and weights.
        key: where in pickled weights the state dict is.
        spelling: of the names; None: by names and shapes.

    Raises:
        UserError: a file is missing or malformed, or the family is unknown.
    """
    config = read_config(directory)
    family = family_for_config(config, f"{directory / 'config.json'}")
    account = Account(directory, family, config)
    files: Mapping[str, HfFile] = {}
    entries: dict[str, list[TensorEntry | Held]] = {}
    index: Mapping[str, Any] | None = None
    if _is_pickled(directory):
        for item in read_state_dict(directory, key).values():
            entries.setdefault(item.path.name, []).append(_held(item))
    else:
        if key is not None:
            raise UserError(f"{directory}: --key is for pickled weights, and these are safetensors")
        weights = read_weights(directory)
        files, index = weights.files, weights.index
        entries = {name: list(file.entries) for name, file in files.items()}
    everything = {entry.name: entry for items in entries.values() for entry in map(_entry, items)}
    shapes = {name: entry.shape for name, entry in everything.items()}
    said = next((file.metadata[SPELLING] for file in files.values() if SPELLING in file.metadata), None)
    spelling = detect_spelling(family, config, shapes, directory, spelling or said)
    expected = whole(family, config, spelling)
    for name, items in entries.items():
        account.file(name, items, expected, beside=everything)
    extra: dict[str, Any] = {"spelling": spelling}
    if files:
        left_out = sorted(name for name in shapes if family.is_ignored(name, config) and name not in expected)
        left_out = [name for name in left_out if name not in account.tied]
        extra["record"] = record(HfWeights(files, index), spelling, account.tied, left_out)
    return account.close(NAME, extra)


def record(weights: HfWeights, spelling: str, tied: Mapping[str, str], left_out: list[str]) -> dict[str, Any]:
    """What a later conversion needs to give back the very files: their tensors in order, metadata and the index."""
    files = {
        name: {
            "metadata": dict(file.metadata),
            "tensors": [[entry.name, entry.dtype, list(entry.shape)] for entry in file.entries],
        }
        for name, file in weights.files.items()
    }
    index = None if weights.index is None else dict(weights.index)
    return {"spelling": spelling, "files": files, "index": index, "tied": dict(tied), "left_out": left_out}


def published(recorded: Mapping[str, Any]) -> str:
    """The spelling of the recorded files."""
    return str(recorded.get("spelling", HF))


def names_left_out(recorded: Mapping[str, Any]) -> set[str]:
    """Tensors of the recorded files that are not carried over.

    Raises:
        UserError: the record is malformed.
    """
    names = _part(recorded, "left_out", list, [])
    if not all(isinstance(name, str) for name in names):
        raise UserError("source record: 'left_out' has what is no name")
    return set(names)


def layout(
    content: Content, *, recorded: Mapping[str, Any] | None = None, max_shard_size: int | None = None
) -> list[TargetFile]:
    """Files of a Hugging Face directory.

    Args:
        content: what to write; states and counters have no place here.
        recorded: the record of the files of an earlier source, if there is one.
        max_shard_size: bytes per file; None keeps the recorded files, or takes the usual size where none are recorded
            in this spelling.

    Raises:
        UserError: the record is malformed, lists what the model does not have, or lacks a tensor.
    """
    if content.states or content.counters:
        raise UserError("a Hugging Face directory has no place for optimizer state; it can only be left out")
    tensors = [(expected.spelled, expected.arrangement) for expected in content.whole.values()]
    stored = {tensor.name: tensor for tensor in content.stored("", tensors, TORCH)}
    tied = _tied(content, recorded) if recorded else {}
    for name, original in tied.items():
        if original in stored:
            stored[name] = replace(stored[original], name=name)
    if recorded and max_shard_size is None and published(recorded) == content.spelling:
        return _as_recorded(stored, recorded, tied)
    groups = by_size(stored.values(), max_shard_size or SHARD_BYTES)
    metadata = {"format": "pt"} if content.spelling == HF else {"format": "pt", SPELLING: content.spelling}
    files = []
    for number, group in enumerate(groups, 1):
        file = SINGLE if len(groups) == 1 else f"model-{number:05d}-of-{len(groups):05d}.safetensors"
        files.append(TargetFile(file, aligned(replace(tensor, file=file) for tensor in group), metadata))
    return files


def index_text(files: Iterable[TargetFile], recorded: Mapping[str, Any] | None = None) -> str | None:
    """Contents of `model.safetensors.index.json`; None where there is one file and no index was recorded.

    Raises:
        UserError: the recorded index is malformed.
    """
    files = list(files)
    index: Any = recorded.get("index") if recorded and _same_names(files, recorded) else None
    if index is None:
        if [file.name for file in files] == [SINGLE]:
            return None
        index = {"metadata": {"total_size": _size(files)}}
    metadata = (index.get("metadata") or {}) if isinstance(index, dict) else None
    if not isinstance(metadata, dict):
        raise UserError("source record: the index or its metadata is no object")
    if "total_size" in metadata and not _is_same(files, recorded or {}):
        index = {**index, "metadata": {**metadata, "total_size": _size(files)}}
    weight_map = {tensor.name: file.name for file in files for tensor in file.tensors}
    return json.dumps({**index, "weight_map": weight_map}, indent=2, sort_keys=True) + "\n"


def finish(directory: Path, files: Iterable[TargetFile], recorded: Mapping[str, Any] | None = None) -> list[Path]:
    """Writes the index, if there is to be one; returns what was written."""
    text = index_text(files, recorded)
    if text is None:
        return []
    path = directory / INDEX
    path.write_text(text, encoding="utf-8")
    return [path]


def _is_pickled(directory: Path) -> bool:
    safe = (directory / INDEX).exists() or (directory / SINGLE).exists()
    return not safe and any((directory / name).exists() for name in (PICKLE_INDEX, PICKLE_SINGLE))


def _held(item: Entry) -> Held:
    size = DTYPE_BITS[item.dtype] // 8
    count = 1
    for extent in item.shape:
        count *= extent
    entry = TensorEntry(item.name, item.path, item.dtype, item.shape, item.offset, count * size)
    return Held(entry, strides=item.strides)


def _entry(item: TensorEntry | Held) -> TensorEntry:
    return item.entry if isinstance(item, Held) else item


def _tied(content: Content, recorded: Mapping[str, Any]) -> dict[str, str]:
    """Second copies that the source had, if the model still ties them."""
    tied = _part(recorded, "tied", dict, {})
    for name, original in tied.items():
        if content.family.tied_to(name, content.config) != original:
            raise UserError(f"source record: ties {name!r} to {original!r}, config.json does not")
    return tied


def _as_recorded(
    stored: Mapping[str, Stored], recorded: Mapping[str, Any], tied: Mapping[str, str]
) -> list[TargetFile]:
    """The recorded files, with their tensors in order. Of tied names, the source may have had the second only."""
    without = names_left_out(recorded)
    files, seen = [], set()
    for name, body in _part(recorded, "files", dict, {}).items():
        if not isinstance(name, str) or Path(name).name != name or not name.endswith(".safetensors"):
            raise UserError(f"source record: file {name!r} is no plain safetensors name")
        try:
            listed = [str(row[0]) for row in body["tensors"] if str(row[0]) not in without]
            metadata = {str(key): str(value) for key, value in body["metadata"].items()}
        except (KeyError, TypeError, IndexError, AttributeError) as error:
            raise UserError(f"source record: file {name!r} is malformed ({error!r})") from error
        if again := [tensor for tensor in listed if tensor in seen or listed.count(tensor) > 1]:
            raise UserError(f"source record: file {name!r} lists {again[0]!r}, which is already listed")
        seen |= set(listed)
        kept = [tensor for tensor in listed if tensor in stored]
        if unknown := [t for t in listed if t not in stored and not t.endswith(SUFFIXES)]:
            raise UserError(f"source record: file {name!r} lists {unknown[0]!r}, which the model does not have")
        if kept:
            files.append(TargetFile(name, tuple(replace(stored[tensor], file=name) for tensor in kept), metadata))
    held = seen | {original for name, original in tied.items() if name in seen}
    if lost := [tensor for tensor in stored if tensor not in held]:
        raise UserError(
            f"source record: lists no file for {lost[0]!r} ({len(lost)} in all); with a maximal size of files, "
            "these are named anew"
        )
    return files


def _same_names(files: list[TargetFile], recorded: Mapping[str, Any]) -> bool:
    return [file.name for file in files] == [name for name in recorded.get("files", {}) if name]


def _is_same(files: list[TargetFile], recorded: Mapping[str, Any]) -> bool:
    """Whether files hold exactly the recorded tensors, dtypes included."""
    rows = {file.name: [[t.name, t.dtype, list(t.arrangement.shape)] for t in file.tensors] for file in files}
    recorded_files = recorded.get("files", {}).items()
    return rows == {name: body.get("tensors") if isinstance(body, dict) else None for name, body in recorded_files}


def _size(files: list[TargetFile]) -> int:
    return sum(nbytes(tensor) for file in files for tensor in file.tensors)


def _part(recorded: Mapping[str, Any], key: str, kind: type, default: Any) -> Any:
    value = recorded.get(key, default)
    if not isinstance(value, kind):
        raise UserError(f"source record: {key!r} is no {kind.__name__}")
    return value
