"""From a Hugging Face directory to the plan of a sharded one: what is wrong with it, and which bytes go where."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mappings.families import Family, Parameter, family_for_config
from mappings.formats.hf_directory import HfWeights, read_config, read_weights
from mappings.formats.manifest import weights_file
from mappings.formats.safetensors import SafetensorsError, TensorEntry
from mappings.layout import ParallelLayout
from mappings.shards import Shard, rank_shards
from migrate.report import Finding
from migrate.weights.codes import finding
from migrate.weights.plan import Assignment, Piece, Plan, Source, Target, TargetFile, extent

FLOATS = ("F32", "F16", "BF16", "F64")
COMPARE_CHUNK = 8 << 20


@dataclass(frozen=True)
class HfModel:
    """A Hugging Face directory whose headers have been read."""

    directory: Path
    config: Mapping[str, Any]
    family: Family
    parameters: Mapping[str, Parameter]
    weights: HfWeights
    tensors: Mapping[str, TensorEntry]

    @classmethod
    def read(cls, directory: Path) -> HfModel:
        """Reads `config.json` and all headers.

        Raises:
            UserError: a file is missing or malformed, or the family is unknown.
        """
        config = read_config(directory)
        family = family_for_config(config, f"{directory / 'config.json'}")
        weights = read_weights(directory)
        parameters = {parameter.name: parameter for parameter in family.parameters(config)}
        return cls(directory, config, family, parameters, weights, weights.tensors)

    @property
    def tied(self) -> dict[str, str]:
        """Stored second copies of tied parameters: name to the parameter it repeats."""
        pairs = {name: self.family.tied_to(name, self.config) for name in self.tensors}
        return {name: original for name, original in pairs.items() if original is not None}

    @property
    def left_out(self) -> list[str]:
        """Stored tensors that are no parameters and no tied copies, but known to be harmless."""
        return sorted(
            name
            for name in self.tensors
            if name not in self.parameters
            and self.family.is_ignored(name, self.config)
            and self.family.tied_to(name, self.config) is None
        )


def judge(model: HfModel) -> list[Finding]:
    """Everything that is wrong or noteworthy, from headers alone; errors mean that no plan exists."""
    findings = []
    for name in sorted(set(model.parameters) - set(model.tensors)):
        findings.append(finding("W001", f"missing; shape {list(model.parameters[name].shape)} expected", tensor=name))
    tied, left_out = model.tied, set(model.left_out)
    for name, entry in sorted(model.tensors.items()):
        parameter = model.parameters.get(tied.get(name, name))
        if name in left_out:
            findings.append(_about("W006", f"left out: {entry.dtype} {list(entry.shape)}", entry))
        elif parameter is None:
            findings.append(_about("W002", f"unexpected: {entry.dtype} {list(entry.shape)}", entry))
        elif entry.shape != parameter.shape:
            found, expected = list(entry.shape), list(parameter.shape)
            findings.append(_about("W003", f"shape {found}, config.json implies {expected}", entry))
        elif entry.dtype not in FLOATS:
            findings.append(_about("W004", f"dtype {entry.dtype}, supported are {', '.join(FLOATS)}", entry))
    return findings + dtype_notes(model.config, [e for n, e in model.tensors.items() if n not in left_out])


def dtype_notes(config: Mapping[str, Any], entries: list[TensorEntry]) -> list[Finding]:
    """Notes on dtypes that differ among the tensors, or from `config.json`."""
    counts: dict[str, int] = {}
    for entry in entries:
        counts[entry.dtype] = counts.get(entry.dtype, 0) + 1
    text = ", ".join(f"{dtype} ({count})" for dtype, count in sorted(counts.items()))
    notes = [finding("W007", f"dtypes {text}")] if len(counts) > 1 else []
    key = "dtype" if "dtype" in config else "torch_dtype"
    names = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "float64": "F64"}
    stated = names.get(str(config.get(key)))
    if stated is not None and counts and stated not in counts:
        message = f"{key} is {config[key]!r}, the tensors are {text}"
        notes.append(finding("W008", message, file="config.json", field=key))
    return notes


def compare_tied(model: HfModel) -> list[Finding]:
    """Stored tied copies whose bytes differ from the parameter they repeat; reads both, in chunks."""
    findings = []
    for name, original in sorted(model.tied.items()):
        first, second = model.tensors[original], model.tensors[name]
        place = None if first.dtype == second.dtype else "in dtype"
        if place is None and (at := first_difference(first, second)) is not None:
            place = f"from byte {at}"
        if place is not None:
            findings.append(_about("W005", f"differs {place} from {original}, to which it is tied", second))
    return findings


def first_difference(first: TensorEntry, second: TensorEntry) -> int | None:
    """Offset of the first byte in which two tensors of one size differ, or None.

    Raises:
        SafetensorsError: a file became shorter than its header says.
    """
    with first.path.open("rb") as a, second.path.open("rb") as b:
        a.seek(first.offset)
        b.seek(second.offset)
        for start in range(0, first.nbytes, COMPARE_CHUNK):
            count = min(COMPARE_CHUNK, first.nbytes - start)
            left, right = a.read(count), b.read(count)
            for entry, data in ((first, left), (second, right)):
                if len(data) != count:
                    raise SafetensorsError(entry.path, "became shorter than its header says", entry.name)
            if left != right:
                unequal = np.frombuffer(left, np.uint8) != np.frombuffer(right, np.uint8)
                return start + int(unequal.argmax())
    return None


def plan_convert(model: HfModel, layout: ParallelLayout) -> Plan:
    """The plan for a model in which `judge` found no error.

    Raises:
        UserError: the layout does not fit the model.
    """
    owners = sorted({layout.weight_owner(rank) for rank in range(layout.world_size)})
    shards: dict[str, list[tuple[str, Shard]]] = {name: [] for name in model.parameters}
    for owner in owners:
        for piece in rank_shards(model.family, model.config, layout, owner):
            shards[piece.parameter.name].append((weights_file(owner), piece))
    assignments = [_assign(model.tensors[name], pieces) for name, pieces in shards.items()]
    by_file: dict[str, list[Target]] = {weights_file(owner): [] for owner in owners}
    for assignment in assignments:
        for target in assignment.targets:
            by_file[target.file].append(target)
    files = [TargetFile(name, aligned(targets), {"format": "ms"}) for name, targets in by_file.items()]
    unused = [model.tensors[name] for name in [*model.tied, *model.left_out]]
    return Plan(tuple(files), tuple(assignments), tuple(unused))


def aligned(targets: list[Target]) -> tuple[Target, ...]:
    """Storage order in which each tensor starts at a multiple of its item size: wide items first, else as given."""
    return tuple(sorted(targets, key=lambda target: -FLOAT_BYTES[target.dtype]))


FLOAT_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}


def _assign(entry: TensorEntry, shards: list[tuple[str, Shard]]) -> Assignment:
    source = Source(entry)
    targets, pieces = [], []
    parameter = shards[0][1].parameter
    axis = parameter.cut or 0
    for file, piece in shards:
        target = Target(file, entry.name, entry.dtype, piece.shape, piece.padding)
        targets.append(target)
        start, count = (0, extent(entry.shape, 0)) if parameter.cut is None else (piece.start, piece.stop - piece.start)
        if count:
            pieces.append(Piece(source, target, start, 0, count))
    return Assignment(entry.name, axis, parameter.cut is None, tuple(pieces), (source,), tuple(targets))


def _about(code: str, message: str, entry: TensorEntry) -> Finding:
    return finding(code, message, file=entry.path.name, tensor=entry.name)
