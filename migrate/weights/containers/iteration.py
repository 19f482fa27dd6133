"""Container `iteration`: what MindSpore Transformers 2.x saves per step, `iteration_%08d` and the tracker beside it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from mappings.arrangement import Arrangement
from mappings.errors import UserError
from mappings.families import Family
from mappings.formats.hf_directory import read_json
from mappings.formats.iteration import (
    COMMON,
    COMMON_KEYS,
    METADATA,
    MODEL,
    OPTIMIZER,
    TRACKER,
    Holder,
    MeshLayout,
    Parameter,
    common_text,
    file_name,
    folder,
    latest,
    metadata_text,
    read_metadata,
)
from mappings.formats.mindspore_dtypes import TO_MINDSPORE
from mappings.formats.regular_files import is_there
from mappings.formats.strategy_slices import Slices
from migrate.report import Finding
from migrate.weights.codes import finding
from migrate.weights.containers.account import Account, padding_note
from migrate.weights.containers.content import Content, aligned
from migrate.weights.containers.expected import Expected, detect_spelling, padded, whole
from migrate.weights.containers.stages import Stages, whole_for
from migrate.weights.containers.states import STATES, of_state, split_state, state_name
from migrate.weights.containers.stored_files import (
    SAFETENSORS,
    metadata_of,
    model_of,
    read_file,
    spelling_of,
    state_style,
)
from migrate.weights.tensors import Checkpoint, Stored, TargetFile

NAME = "iteration"


def read(
    directory: Path,
    family: Family | None = None,
    config: Mapping[str, Any] | None = None,
    spelling: str | None = None,
) -> Checkpoint:
    """A step, or the newest step of a directory of steps, from its headers.

    Without `metadata.json` every file holds whole tensors, as MindSpore Transformers takes it.

    Args:
        directory: of the step, or of all steps.
        family: of the model; None: by its `config.json`.
        config: `config.json`; None: that of the directory.
        spelling: of the names; None: as the files say, else by the names.

    Raises:
        UserError: a file is missing or malformed, or the model is unknown.
    """
    home = directory
    directory = latest(directory)
    if config is None and not (directory / "config.json").is_file() and (home / "config.json").is_file():
        family, config = model_of(home, family, None)
    family, config = model_of(directory, family, config)
    path = directory / METADATA
    parameters = read_metadata(path) if is_there(path) else None
    names = sorted(file.name for file in directory.glob("*" + SAFETENSORS))
    if not names:
        raise UserError(f"{directory}: no safetensors in it")
    if parameters is not None:
        wanted = {h.file for one in parameters.values() for held in one.holders.values() for h in held}
        if lost := sorted(wanted - set(names)):
            raise UserError(f"{path}: names {lost[0]!r}, which is missing ({len(lost)} in all)")
        if stray := sorted(set(names) - wanted):
            raise UserError(f"{directory}: {stray[0]} is not in {METADATA}; remove it")
    found = {name: read_file(directory / name) for name in names}
    shapes: dict[str, tuple[int, ...] | None] = {e.name: e.shape for file in found.values() for e in file.entries}
    shapes |= {name: one.shape for name, one in (parameters or {}).items()}
    spelling = detect_spelling(family, config, shapes, directory, spelling or spelling_of(found.values()))
    everything = whole(family, config, spelling)
    account = Account(directory, family, config)
    reader = _Reader(everything, parameters, family, config, path)
    for name, file in found.items():
        if parameters is None:
            account.file(name, file.items, everything)
        else:
            weights, states = reader.expected(name)
            account.file(name, file.items, weights, states, holder=name)
    rest = {} if parameters is None else {n: e for n, e in everything.items() if n not in parameters}
    account.file("", [], rest, {}, holder="", partial=True)
    account.findings += reader.padded.values()
    common = read_json(directory / COMMON) if is_there(directory / COMMON) else {}
    account.findings += [
        finding("W009", f"{key} is not carried over", file=COMMON) for key in sorted(set(common) - set(COMMON_KEYS))
    ]
    return account.close(NAME, {"spelling": spelling, "parameters": parameters, "common": common})


def layout(content: Content, stages: Stages, step: int) -> list[TargetFile]:
    """Files of a step; each piece is in the file of the first rank that holds it.

    Raises:
        UserError: a tensor has no equal pieces.
    """
    whole = whole_for(content, stages)
    files = []
    for rank in range(stages.world_size):
        for kind, states in ((MODEL, [""]), (OPTIMIZER, list(content.states))):
            file = f"{folder(step)}/{file_name(kind, rank, stages.world_size)}"
            tensors = [t for state in states for t in _pieces(content, stages, whole, rank, state, file)]
            if rank == 0 and kind == OPTIMIZER:
                tensors += content.numbers(file)
            if tensors:
                files.append(TargetFile(file, aligned(tensors), metadata_of(content.spelling)))
    return files


def finish(directory: Path, content: Content, stages: Stages, step: int, common: Mapping[str, Any]) -> list[Path]:
    """Writes `metadata.json`, `common.json` and the tracker; returns them.

    Args:
        directory: of the output, in which the folder of the step is.
        content: what was written.
        stages: how it is cut.
        step: its number.
        common: values of `common.json`; those that are not given are null, but the step and a healthy status.
    """
    home = directory / folder(step)
    values = {"global_step": step, "ckpt_status": 0, **common}
    texts = {
        home / METADATA: metadata_text(parameters_of(content, stages)),
        home / COMMON: common_text(values),
        directory / TRACKER: str(step),
    }
    for path, text in texts.items():
        path.write_text(text, encoding="utf-8")
    return list(texts)


def parameters_of(content: Content, stages: Stages) -> dict[str, Parameter]:
    """Contents of `metadata.json`."""
    whole = whole_for(content, stages)
    style = state_style(content.spelling)
    result: dict[str, Parameter] = {}
    for state in ("", *content.states):
        for name, expected in whole.items():
            stored = state_name(state, name, style)
            cuts = {stage: cut[stored] for stage, cut in enumerate(stages.cuts) if stored in cut}
            result[stored] = _described(content, stages, expected, state, cuts)
    holder = _holder(stages, OPTIMIZER, [0])
    for name, (dtype, shape) in content.counters.items():
        result[name] = Parameter(TO_MINDSPORE[dtype], shape, (1,) * len(shape), None, {0: shape}, {0: (holder,)})
    return result


def mesh_layout(cut: Slices, axes: Iterable[str], ranks: Iterable[int]) -> MeshLayout:
    """The layout of a cut.

    The parallel optimizer of MindSpore has no key of its own here: it is one more cut of axis 0, inside the others, by
    the mesh axes along which there would be copies.

    Raises:
        UserError: it divides some copies only, and no mesh axes do so.
    """
    cuts = [*cut.cuts]
    if cut.optimizer > 1:
        used = {axis for one in cuts for axis in one}
        free = [axis for axis, size in enumerate(cut.mesh) if axis not in used and size > 1]
        while math.prod(cut.mesh[axis] for axis in free) > cut.optimizer:
            free.pop(0)  # copies are counted row by row, so that the last axes divide first
        if math.prod(cut.mesh[axis] for axis in free) != cut.optimizer:
            raise UserError(f"metadata.json has no form for {cut.optimizer} pieces by the parallel optimizer")
        cuts[0] = (*cuts[0], *free)
    tensor_map = tuple(tuple(len(cut.mesh) - 1 - axis for axis in one) for one in cuts)
    return MeshLayout(cut.mesh, tensor_map, tuple(axes), tuple(ranks))


class _Reader:
    """Finds out what files should hold, from `metadata.json`."""

    def __init__(
        self,
        whole: Mapping[str, Expected],
        parameters: Mapping[str, Parameter] | None,
        family: Family,
        config: Mapping[str, Any],
        path: Path,
    ) -> None:
        self.whole, self.path, self.parameters = whole, path, parameters or {}
        self.atoms = family.atoms(config)
        self.padded: dict[str, Finding] = {}
        self.held: dict[str, list[tuple[str, int]]] = {}
        for name, parameter in self.parameters.items():
            for piece, holders in parameter.holders.items():
                for holder in holders:
                    self.held.setdefault(holder.file, []).append((name, piece))

    def expected(self, file: str) -> tuple[dict[str, Expected], dict[str, dict[str, Expected]]]:
        """Weights and states of a file."""
        weights: dict[str, Expected] = {}
        states: dict[str, dict[str, Expected]] = {state: {} for state in STATES}
        for name, piece in self.held.get(file, ()):
            state, parameter = split_state(name)
            if parameter in self.whole:
                held = states[state] if state else weights
                held[parameter] = self._piece(name, parameter, self.parameters[name], piece)
        return weights, states

    def _piece(self, stored: str, name: str, parameter: Parameter, number: int) -> Expected:
        expected = self.whole[name]
        arrangement = expected.arrangement
        if (longer := padded(expected, parameter.shape, self.atoms)) is not None:
            arrangement = longer
            self.padded[stored] = padding_note(stored, longer.shape, expected)
        counts = parameter.pieces
        if parameter.layout is not None and parameter.layout.interleaved_parallel:
            raise UserError(f"{self.path}: parameter {name!r}: interleaved layouts are not supported")
        if arrangement.shape != parameter.shape or len(counts) != len(parameter.shape) or 0 in counts:
            raise UserError(
                f"{self.path}: parameter {name!r}: shape {list(parameter.shape)} in {list(counts)} pieces, "
                f"{list(expected.arrangement.shape)} expected from config.json"
            )
        if parameter.layout is not None and parameter.layout.counts != counts:
            raise UserError(
                f"{self.path}: parameter {name!r}: its layout makes {list(parameter.layout.counts)} pieces, "
                f"axis_fragmentations says {list(counts)}"
            )
        for axis in reversed(range(len(counts))):
            number, index = divmod(number, counts[axis])
            size, rest = divmod(parameter.shape[axis], counts[axis])
            if rest:
                raise UserError(f"{self.path}: parameter {name!r}: axis {axis} has no {counts[axis]} equal pieces")
            if counts[axis] > 1:
                arrangement = arrangement.slice(axis, index * size, (index + 1) * size)
        if number:
            raise UserError(f"{self.path}: parameter {name!r}: a piece has a number beyond {list(counts)}")
        return Expected(expected.spelled, arrangement)


def _pieces(
    content: Content, stages: Stages, whole: Mapping[str, Expected], rank: int, state: str, file: str
) -> list[Stored]:
    """What a rank stores, because it is the first to hold it."""
    style = state_style(content.spelling)
    tensors = []
    for name, expected in whole.items():
        stored = state_name(state, name, style)
        cut = stages.cut(stored, rank)
        if cut is None or _owner(stages, stored, rank) != rank:
            continue
        piece: Arrangement = of_state(cut.piece(expected.arrangement, rank % stages.ranks), state)
        tensors.append(Stored(file, stored, content.dtype(expected.spelled, state), piece))
    return tensors


def _owner(stages: Stages, name: str, rank: int) -> int:
    """The rank that stores the piece of a rank; a tensor on several stages is stored by the first of them."""
    first = next(stage for stage, cuts in enumerate(stages.cuts) if name in cuts)
    return stages.group(name, rank)[0] if stages.stage(rank) == first else -1


def _described(
    content: Content, stages: Stages, expected: Expected, state: str, cuts: Mapping[int, Slices]
) -> Parameter:
    first = min(cuts)
    cut, base = cuts[first], first * stages.ranks
    groups: dict[int, list[int]] = {}
    copies: list[int] = []
    for rank in range(stages.ranks):
        number = 0
        for index, count in zip(cut.indices(rank), cut.counts, strict=True):
            number = number * count + index
        copies.append(len(groups.setdefault(number, [])))
        groups[number].append(base + rank)
    pieces = sorted(groups, key=lambda number: groups[number][0])
    local = tuple(size // count for size, count in zip(expected.arrangement.shape, cut.counts, strict=True))
    kind = OPTIMIZER if state else MODEL
    return Parameter(
        TO_MINDSPORE[content.dtype(expected.spelled, state)],
        expected.arrangement.shape,
        cut.counts,
        mesh_layout(cut, stages.names(cut), range(base, base + stages.ranks)),
        dict.fromkeys(pieces, local),
        {number: (_holder(stages, kind, groups[number]),) for number in pieces},
        tuple(copies),
    )


def _holder(stages: Stages, kind: str, group: list[int]) -> Holder:
    return Holder(file_name(kind, group[0], stages.world_size), group[0], tuple(group))
