"""From a sharded directory back to Hugging Face: what is wrong with it, and which bytes go where.

The original file names, tensor order and index come from the manifest's record of the source; a training run that
started from nothing has none, and gets the usual `model.safetensors` or numbered shards.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mappings.errors import UserError
from mappings.families import Family, family_for_config, load_family
from mappings.formats.hf_directory import SINGLE, read_config
from mappings.formats.manifest import NAME, Manifest
from mappings.formats.safetensors import TensorEntry, read_header
from mappings.shards import Shard, rank_shards
from migrate.report import Finding
from migrate.weights.codes import finding
from migrate.weights.convert_plan import FLOATS, HfModel, aligned, first_difference
from migrate.weights.plan import Assignment, Piece, Plan, Source, Target, TargetFile, extent

DEFAULT_SHARD_SIZE = 5_000_000_000


@dataclass(frozen=True)
class ShardedModel:
    """A sharded directory whose manifest and headers have been read."""

    directory: Path
    manifest: Manifest
    config: Mapping[str, Any]
    family: Family
    shards: Mapping[int, Mapping[str, Shard]]
    """What each owner should hold."""
    tensors: Mapping[int, Mapping[str, TensorEntry]]
    """What each owner holds."""

    @classmethod
    def read(cls, directory: Path) -> ShardedModel:
        """Reads the manifest, `config.json` and the headers of all weight owners.

        Raises:
            UserError: a file is missing or malformed, or the layout does not fit the model.
        """
        manifest = Manifest.read(directory)
        config, family = read_config(directory), load_family(manifest.family)
        named = family_for_config(config, f"{directory / 'config.json'}").name
        if named != manifest.family:
            raise UserError(f"{directory}: {NAME} says family {manifest.family!r}, config.json {named!r}")
        owners = sorted({manifest.layout.weight_owner(rank) for rank in manifest.weights})
        shards, tensors = {}, {}
        for owner in owners:
            shards[owner] = {s.parameter.name: s for s in rank_shards(family, config, manifest.layout, owner)}
            tensors[owner] = {entry.name: entry for entry in read_header(directory / manifest.weights[owner])[0]}
        return cls(directory, manifest, config, family, shards, tensors)

    @property
    def entries(self) -> list[TensorEntry]:
        """Every tensor of every owner."""
        return [entry for held in self.tensors.values() for entry in held.values()]


def judge_shards(model: ShardedModel) -> list[Finding]:
    """Everything that is wrong with the headers; errors mean that no plan exists."""
    findings = []
    for owner, expected in model.shards.items():
        held, file = model.tensors[owner], model.manifest.weights[owner]
        for name in sorted(set(expected) - set(held)):
            findings.append(
                finding("W001", f"missing; shape {list(expected[name].shape)} expected", file=file, tensor=name)
            )
        for name, entry in sorted(held.items()):
            if name not in expected:
                message = f"unexpected: {entry.dtype} {list(entry.shape)}"
                findings.append(finding("W002", message, file=file, tensor=name))
            elif entry.shape != expected[name].shape:
                message = f"shape {list(entry.shape)}, config.json and the layout imply {list(expected[name].shape)}"
                findings.append(finding("W003", message, file=file, tensor=name))
            elif entry.dtype not in FLOATS:
                message = f"dtype {entry.dtype}, supported are {', '.join(FLOATS)}"
                findings.append(finding("W004", message, file=file, tensor=name))
    names = sorted({entry.name for entry in model.entries})
    for name in names:
        dtypes = sorted({held[name].dtype for held in model.tensors.values() if name in held})
        if len(dtypes) > 1:
            findings.append(finding("W017", f"dtype differs between ranks: {', '.join(dtypes)}", tensor=name))
    return findings


def compare_replicas(model: ShardedModel) -> tuple[list[Finding], int]:
    """Replicated parameters whose copies differ between owners, and how many copies were compared."""
    findings, compared = [], 0
    first, *others = model.shards
    for name, shard in model.shards[first].items():
        if shard.parameter.cut is not None:
            continue
        for owner in others:
            compared += 1
            at = first_difference(model.tensors[first][name], model.tensors[owner][name])
            if at is not None:
                message = f"differs from the copy of rank {first} from byte {at}"
                findings.append(finding("W014", message, file=model.manifest.weights[owner], tensor=name))
    return findings, compared


def source_record(model: HfModel) -> dict[str, Any]:
    """What a conversion notes in the manifest so that `export` can give back the very files."""
    files = {
        name: {
            "metadata": dict(file.metadata),
            "tensors": [[entry.name, entry.dtype, list(entry.shape)] for entry in file.entries],
        }
        for name, file in model.weights.files.items()
    }
    index = None if model.weights.index is None else dict(model.weights.index)
    return {"files": files, "index": index, "tied": model.tied, "left_out": model.left_out}


def plan_export(model: ShardedModel, max_shard_size: int | None) -> tuple[Plan, str | None]:
    """The plan for a model in which `judge_shards` found no error, and the text of the index file (None: no index).

    Args:
        model: the sharded model.
        max_shard_size: bytes per file; None keeps the recorded files, or the usual size where none are recorded.

    Raises:
        UserError: the record of the source contradicts the model.
    """
    merged = {name: _merge(model, name) for name in model.shards[0]}
    record = model.manifest.source
    tied = _recorded(record, "tied", dict, {})
    for name, original in tied.items():
        if model.family.tied_to(name, model.config) != original:
            raise UserError(f"{model.directory / NAME}: source ties {name!r} to {original!r}, config.json does not")
        merged[name] = merged[original]
    if record and max_shard_size is None:
        files, index = _files_as_recorded(model, merged)
    else:
        files, index = _files_by_size(merged, max_shard_size or DEFAULT_SHARD_SIZE)
    assignments = []
    for file in files:
        for target in file.targets:
            sources, pieces, axis = merged[target.name]
            moved = tuple(Piece(s, target, at, to, count) for s, at, to, count in pieces)
            replicated = model.shards[0][tied.get(target.name, target.name)].parameter.cut is None
            assignments.append(Assignment(target.name, axis, replicated, moved, sources, (target,)))
    used = {(str(s.entry.path), s.entry.name) for a in assignments for s in a.sources}
    unused = [entry for entry in model.entries if (str(entry.path), entry.name) not in used]
    return Plan(tuple(files), tuple(assignments), tuple(unused)), index


Merged = tuple[tuple[Source, ...], tuple[tuple[Source, int, int, int], ...], int]
"""Sources, (source, its start, start in the whole, count) for each, and the axis."""


def _merge(model: ShardedModel, name: str) -> Merged:
    parameter = model.shards[0][name].parameter
    axis = parameter.cut or 0
    if parameter.cut is None:
        source = Source(model.tensors[0][name])
        return (source,), ((source, 0, 0, extent(parameter.shape, 0)),), axis
    sources, pieces = [], []
    for owner, shards in model.shards.items():
        piece = shards[name]
        if piece.stop > piece.start:  # otherwise padding only
            source = Source(model.tensors[owner][name], piece.padding)
            sources.append(source)
            pieces.append((source, 0, piece.start, piece.stop - piece.start))
    return tuple(sources), tuple(pieces), axis


def _target(merged: Mapping[str, Merged], file: str, name: str) -> Target:
    sources, pieces, axis = merged[name]
    shape = list(sources[0].entry.shape)
    shape[axis] = sum(count for *_, count in pieces)
    return Target(file, name, sources[0].entry.dtype, tuple(shape))


def _files_as_recorded(model: ShardedModel, merged: Mapping[str, Merged]) -> tuple[list[TargetFile], str | None]:
    where = model.directory / NAME
    left_out = set(_recorded(model.manifest.source, "left_out", list, []))
    files, same = [], not left_out
    seen: set[str] = set()
    for name, body in _recorded(model.manifest.source, "files", dict, {}).items():
        if not isinstance(name, str) or Path(name).name != name or not name.endswith(".safetensors"):
            raise UserError(f"{where}: source file {name!r} is no plain safetensors name")
        try:
            rows = [(str(n), str(dtype), tuple(shape)) for n, dtype, shape in body["tensors"] if n not in left_out]
            metadata = {str(key): str(value) for key, value in body["metadata"].items()}
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UserError(f"{where}: malformed source record of {name!r} ({error!r})") from error
        for listed, *_ in rows:
            if listed not in merged or listed in seen:
                raise UserError(f"{where}: source file {name!r} lists {listed!r}, which is unknown or already listed")
            seen.add(listed)
        targets = [_target(merged, name, n) for n, *_ in rows]
        same = same and rows == [(t.name, t.dtype, t.shape) for t in targets]
        if targets:
            files.append(TargetFile(name, tuple(targets), metadata))
    if missing := sorted(set(merged) - seen):
        raise UserError(
            f"{where}: the source record lists no file for {', '.join(missing[:5])} ({len(missing)} in all)"
        )
    index = model.manifest.source.get("index")
    if index is None:
        return files, None
    if not isinstance(index, dict):
        raise UserError(f"{where}: source index is no object")
    if not same and isinstance(index.get("metadata"), dict) and "total_size" in index["metadata"]:
        index = {**index, "metadata": {**index["metadata"], "total_size": _size(files)}}
    return files, _index_text(index, files)


def _files_by_size(merged: Mapping[str, Merged], limit: int) -> tuple[list[TargetFile], str | None]:
    groups: list[list[Target]] = [[]]
    size = 0
    for name in merged:
        target = _target(merged, "", name)
        if groups[-1] and size + target.nbytes > limit:
            groups.append([])
            size = 0
        groups[-1].append(target)
        size += target.nbytes
    files = []
    for number, group in enumerate(groups, 1):
        file = SINGLE if len(groups) == 1 else f"model-{number:05d}-of-{len(groups):05d}.safetensors"
        files.append(TargetFile(file, aligned([_target(merged, file, t.name) for t in group]), {"format": "pt"}))
    if len(files) == 1:
        return files, None
    return files, _index_text({"metadata": {"total_size": _size(files)}}, files)


def _size(files: list[TargetFile]) -> int:
    return sum(target.nbytes for file in files for target in file.targets)


def _index_text(index: Mapping[str, Any], files: list[TargetFile]) -> str:
    weight_map = {target.name: file.name for file in files for target in file.targets}
    return json.dumps({**index, "weight_map": weight_map}, indent=2, sort_keys=True) + "\n"


def _recorded(record: Mapping[str, Any], key: str, kind: type, default: Any) -> Any:
    value = record.get(key, default)
    if not isinstance(value, kind):
        raise UserError(f"{NAME}: source {key!r} is no {kind.__name__}")
    return value
