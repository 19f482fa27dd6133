"""Container `strategy`: a folder per rank, and the strategy files that say how each tensor was cut."""

from __future__ import annotations

import itertools
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mappings.arrangement import Shape
from mappings.errors import UserError
from mappings.families import Family
from mappings.families.atoms import Atom
from mappings.formats.strategy import TensorLayout, encode_strategy, merged
from migrate.report import Finding
from migrate.weights.containers.account import Account, padding_note
from migrate.weights.containers.content import Content, aligned
from migrate.weights.containers.expected import Expected, detect_spelling, padded, whole
from migrate.weights.containers.rank_folders import (
    META,
    STRATEGY,
    STRATEGY_FOLDER,
    Naming,
    meta_body,
    rank_files,
    strategy_files,
)
from migrate.weights.containers.stages import Stages, whole_for
from migrate.weights.containers.states import STATES, of_state, split_state, state_name
from migrate.weights.containers.stored_files import (
    CKPT,
    REDUNDANCY,
    MindSporeFile,
    metadata_of,
    model_of,
    read_file,
    spelling_of,
    state_style,
)
from migrate.weights.containers.strategy_layouts import checked, read_layouts, strategies_of
from migrate.weights.tensors import Checkpoint, Stored, TargetFile

NAME = "strategy"
MERGED = "merged_ckpt_strategy.ckpt"


def read(
    directory: Path,
    family: Family | None = None,
    config: Mapping[str, Any] | None = None,
    spelling: str | None = None,
    *,
    strategy: Path | None = None,
    ending: str | None = None,
    redundancy_removed: bool = False,
) -> Checkpoint:
    """Rank folders with their strategies, from headers.

    Args:
        directory: with `rank_N` folders.
        family: of the model; None: by its `config.json`.
        config: `config.json`; None: that of the directory.
        spelling: of the names; None: as the files say, else by the names.
        strategy: a strategy file (also a merged one) or a folder with them; None: looked for in the directory.
        ending: of the file names, where a folder has files of several steps.
        redundancy_removed: whether ranks lack what others hold; safetensors of MindSpore say so themselves.

    Raises:
        UserError: a file is missing or malformed, strategies contradict each other, or the model is unknown.
    """
    family, config = model_of(directory, family, config)
    files = rank_files(directory, ending)
    sources = strategy_files(directory, strategy)
    layouts, ranks = read_layouts(sources)
    if len(files) != ranks * len(layouts):
        raise UserError(
            f"{directory}: {len(files)} rank folders, the strategy is for {ranks * len(layouts)} "
            f"({len(layouts)} stages of {ranks})"
        )
    held = {rank: read_file(path) for rank, path in files.items()}
    shapes: dict[str, tuple[int, ...] | None] = {e.name: None for file in held.values() for e in file.entries}
    spelling = detect_spelling(family, config, shapes, directory, spelling or spelling_of(held.values()))
    local = {entry.name: entry.shape for file in held.values() for entry in file.entries}
    reader = _Reader(whole(family, config, spelling), local, family.atoms(config), sources[0])
    account = Account(directory, family, config)
    for rank, path in files.items():
        weights, states = reader.expected(held[rank], layouts[rank // ranks], rank % ranks)
        removed = redundancy_removed or held[rank].removed
        name = str(path.relative_to(directory))
        account.file(name, held[rank].items, weights, states, holder=name, partial=removed)
    account.file("", [], reader.rest, {}, holder="", partial=True)
    account.findings += reader.padded.values()
    return account.close(NAME, {"spelling": spelling, "layouts": layouts, "ranks": ranks})


def layout(
    content: Content, stages: Stages, naming: Naming = Naming(), *, remove_redundancy: bool = False
) -> list[TargetFile]:
    """Files of all ranks. Ranks that hold the same share one file here, of which `finish` makes links.

    Args:
        content: what to write.
        stages: how it is cut.
        naming: of the files.
        remove_redundancy: each piece is written by one of the ranks that hold it, in turn.

    Raises:
        UserError: a tensor has no equal pieces.
    """
    whole = whole_for(content, stages)
    form = "ckpt" if naming.suffix == CKPT else "safetensors"
    metadata = metadata_of(content.spelling) if form == "safetensors" else {}
    if remove_redundancy and metadata:
        metadata = {**metadata, REDUNDANCY: "True"}
    ranks = range(stages.world_size) if remove_redundancy else sorted(set(owners(stages).values()))
    files = []
    for rank in ranks:
        file = naming.file(rank)
        tensors = _tensors(content, stages, whole, rank, file, remove_redundancy)
        tensors += content.numbers(file)
        files.append(TargetFile(file, tuple(tensors) if form == "ckpt" else aligned(tensors), metadata, form))
    return files


def finish(
    directory: Path,
    content: Content,
    stages: Stages,
    naming: Naming = Naming(),
    *,
    remove_redundancy: bool = False,
    merge: bool = False,
) -> list[Path]:
    """Makes the files of ranks that hold what others hold, and writes the strategies; returns what was written.

    Args:
        directory: of the output.
        content: what was written.
        stages: how it is cut.
        naming: of the files.
        remove_redundancy: as for `layout`; every rank then has a file of its own.
        merge: whether a merged strategy file is written, too.
    """
    written = []
    for rank, owner in {} if remove_redundancy else owners(stages).items():
        if rank != owner:
            written.append(_linked(directory / naming.file(owner), directory / naming.file(rank)))
    if naming.epoch is not None:
        for rank in range(stages.world_size):
            path = directory / naming.rank_folder(rank) / META
            path.write_text(json.dumps(meta_body(naming, rank)), encoding="utf-8")
            written.append(path)
    folder = directory / STRATEGY_FOLDER
    folder.mkdir(exist_ok=True)
    strategies = strategies_of(stages)
    texts = [encode_strategy(one) for one in strategies]
    for rank in range(stages.world_size):
        path = folder / STRATEGY.format(rank=rank)
        path.write_bytes(texts[stages.stage(rank)])
        written.append(path)
    if merge:
        path = folder / MERGED
        path.write_bytes(encode_strategy(merged(strategies)))
        written.append(path)
    return written


def owners(stages: Stages) -> dict[int, int]:
    """For each rank the first one that holds the very same pieces."""
    seen: dict[tuple[object, ...], int] = {}
    result = {}
    for stage, cuts in enumerate(stages.cuts):
        kinds = list(dict.fromkeys(cuts.values()))
        for local in range(stages.ranks):
            key = (stage, *(kind.indices(local) for kind in kinds))
            rank = stage * stages.ranks + local
            result[rank] = seen.setdefault(key, rank)
    return result


class _Reader:
    """Finds out what ranks should hold."""

    def __init__(
        self, whole: dict[str, Expected], local: Mapping[str, Shape], atoms: Mapping[str, Atom], source: Path
    ) -> None:
        self.whole, self.local, self.atoms, self.source = whole, local, atoms, source
        self.rest = dict(whole)
        """Tensors that no rank was expected to hold."""
        self.padded: dict[str, Finding] = {}

    def expected(
        self, file: MindSporeFile, layouts: Mapping[str, TensorLayout], rank: int
    ) -> tuple[dict[str, Expected], dict[str, dict[str, Expected]]]:
        """Weights and states of a rank of a stage."""
        names = [entry.name for entry in file.entries]
        weights: dict[str, Expected] = {}
        states: dict[str, dict[str, Expected]] = {state: {} for state in STATES}
        for name in dict.fromkeys((*layouts, *names)):
            state, parameter = split_state(name)
            if parameter not in self.whole:
                continue
            given = layouts.get(name) or layouts.get(parameter)
            piece = self._piece(name, parameter, given, rank)
            (states[state] if state else weights)[parameter] = piece
            if not state:
                self.rest.pop(parameter, None)
        for state in {split_state(name)[0] for name in names} - {""}:
            for parameter in weights:
                if parameter not in states[state]:
                    states[state][parameter] = self._piece(parameter, parameter, layouts.get(parameter), rank)
        return weights, states

    def _piece(self, stored: str, name: str, given: TensorLayout | None, rank: int) -> Expected:
        expected = self.whole[name]
        if given is None:  # MindSpore keeps whole what its strategy does not name
            return expected
        cut = checked(self.source, name, given, len(expected.arrangement.shape))
        arrangement = expected.arrangement
        shape = self.local.get(stored)  # pieces are equal, so those of any rank tell the padding
        if shape is not None and len(shape) == len(arrangement.shape):
            arrangement = padded(expected, cut.whole(shape), self.atoms) or arrangement
            if arrangement is not expected.arrangement:
                self.padded[stored] = padding_note(stored, arrangement.shape, expected)
        try:
            return Expected(expected.spelled, cut.piece(arrangement, rank))
        except ValueError as error:
            raise UserError(f"{self.source}: parameter {name!r}: {error}") from error


def _tensors(
    content: Content, stages: Stages, whole: Mapping[str, Expected], rank: int, file: str, remove_redundancy: bool
) -> list[Stored]:
    style = state_style(content.spelling)
    tensors = []
    turn = itertools.count()  # ranks with the same pieces take turns
    for name, expected in whole.items():
        for state in ("", *content.states):
            number = next(turn)
            stored = state_name(state, name, style)
            cut = stages.cut(stored, rank)
            if cut is None:
                continue
            if remove_redundancy:
                group = stages.group(stored, rank)
                if group[number % len(group)] != rank:
                    continue
            piece = of_state(cut.piece(expected.arrangement, rank % stages.ranks), state)
            tensors.append(Stored(file, stored, content.dtype(expected.spelled, state), piece))
    return tensors


def _linked(existing: Path, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(existing, path)
    except OSError:  # a file system without links
        shutil.copyfile(existing, path)
    return path
