"""Container `sharded`: one file of weights per rank, one of optimizer state, and `manifest.json`; what ms_models runs.

Ranks that hold the same share the file of the first of them. State is named like its parameter with `exp_avg.`,
`exp_avg_sq.` or `master.` in front, and is cut like it; with ZeRO over dp besides (`mappings/rank_cuts.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mappings.errors import UserError
from mappings.families import family_for_config, load_family
from mappings.families.family import HF
from mappings.formats.hf_directory import read_config
from mappings.formats.manifest import NAME as MANIFEST
from mappings.formats.manifest import FileRecord, Manifest, optimizer_file, weights_file
from mappings.formats.safetensors import read_header
from mappings.layout import ParallelLayout
from mappings.rank_cuts import RankCuts
from migrate.weights.containers.account import Account
from migrate.weights.containers.content import Content, aligned
from migrate.weights.containers.expected import Expected, check_count
from migrate.weights.containers.states import STATES, TORCH
from migrate.weights.tensors import Checkpoint, TargetFile

NAME = "sharded"
METADATA = {"format": "ms"}
ADAPTER = "adapter.json"
"""Beside the tensors of a run of converted code; its content: `ms_models/train/adapter/tensors.py`."""
WHOLE = "weights.safetensors"
"""In a run of converted code that reached its last step: `ms_models/train/adapter/final_weights.py`."""


def read(directory: Path) -> Checkpoint:
    """A sharded directory, from its manifest and headers.

    Raises:
        UserError: a file is missing or malformed, the layout does not fit the model, or it is of converted code.
    """
    manifest = Manifest.read(directory)
    if (directory / ADAPTER).is_file():
        whole = directory.parent / WHOLE
        raise UserError(
            f"{directory}: is of a run of converted code, whose tensors no other toolkit knows; "
            + (
                f"its weights, by the names of the code, are in {whole}"
                if whole.is_file()
                else f"the run has not reached its last step, which writes {WHOLE} with its weights by the names of "
                "the code: go on with --resume"
            )
        )
    config, family = read_config(directory), load_family(manifest.family)
    named = family_for_config(config, f"{directory / 'config.json'}").name
    if named != manifest.family:
        raise UserError(f"{directory}: {MANIFEST} says family {manifest.family!r}, config.json {named!r}")
    layout = manifest.layout
    check_count(family, config)
    cuts = RankCuts(family, config, layout)
    account = Account(directory, family, config)
    for owner in weight_owners(layout):
        file = manifest.weights[owner]
        account.file(file, read_header(directory / file)[0], _expected(cuts, owner), {}, holder=file)
    optimizer = [optimizer_file(owner) for owner in state_owners(layout)]
    if lacking := [file for file in optimizer if file not in manifest.files]:
        if len(lacking) < len(optimizer):
            raise UserError(f"{directory}: {MANIFEST} lists optimizer state, but not {', '.join(lacking[:5])}")
        optimizer = []
    for owner, file in zip(state_owners(layout), optimizer, strict=False):
        expected = _expected(cuts, owner, states=True)
        account.file(file, read_header(directory / file)[0], {}, dict.fromkeys(STATES, expected), holder=file)
    return account.close(NAME, {"spelling": HF, "manifest": manifest, "record": manifest.source})


def layout(content: Content, layout: ParallelLayout) -> list[TargetFile]:
    """Files of a sharded directory.

    Raises:
        UserError: the layout does not fit the model, or there are counters, which live in the manifest here.
    """
    if content.spelling != HF:
        raise UserError(f"a sharded directory has the names of Hugging Face, not the spelling {content.spelling!r}")
    if content.counters:
        raise UserError("a sharded directory has no place for counters of MindSpore; they can only be left out")
    cuts = RankCuts(content.family, content.config, layout)
    files = []
    for owner in weight_owners(layout):
        file = weights_file(owner)
        files.append(TargetFile(file, aligned(content.stored(file, cuts.tensors(owner), TORCH)), METADATA))
    for owner in state_owners(layout) if content.states else ():
        file = optimizer_file(owner)
        tensors = content.stored(file, cuts.tensors(owner, states=True), TORCH, content.states)
        files.append(TargetFile(file, aligned(tensors), METADATA))
    return files


def finish(
    directory: Path,
    content: Content,
    layout: ParallelLayout,
    *,
    files: Mapping[str, FileRecord],
    versions: Mapping[str, str],
    source: Mapping[str, Any],
    training: Mapping[str, Any] | None = None,
) -> Manifest:
    """Writes the manifest, after all other files.

    Args:
        directory: of the output.
        content: what was written.
        layout: of the ranks.
        files: size and digest of every file of the directory.
        versions: of what wrote it.
        source: record of where the weights came from.
        training: state of a run that goes along.
    """
    weights = {rank: weights_file(layout.weight_owner(rank)) for rank in range(layout.world_size)}
    manifest = Manifest(
        content.family.name, layout, weights, dict(files), dict(versions), dict(source), dict(training or {})
    )
    manifest.write(directory)
    return manifest


def weight_owners(layout: ParallelLayout) -> list[int]:
    """Ranks that have a file of weights."""
    return sorted({layout.weight_owner(rank) for rank in range(layout.world_size)})


def state_owners(layout: ParallelLayout) -> list[int]:
    """Ranks that have a file of optimizer state."""
    return sorted({layout.state_owner(rank) for rank in range(layout.world_size)})


def _expected(cuts: RankCuts, rank: int, states: bool = False) -> dict[str, Expected]:
    try:
        tensors = cuts.tensors(rank, states)
    except ValueError as error:
        raise UserError(f"config.json: its sizes do not fit each other: {error}") from error
    return {spelled.name: Expected(spelled, arrangement) for spelled, arrangement in tensors}
