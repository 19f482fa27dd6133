"""Optimizer states of any layout from the files of any other: what `msmigrate weights reshard` writes, bit by bit."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mappings.arrangement import Arrangement
from mappings.errors import UserError
from mappings.families import family_for_config
from mappings.formats.manifest import optimizer_file, random_file, weights_file
from mappings.formats.safetensors import TensorEntry, read_header
from mappings.layout import ParallelLayout
from mappings.rank_cuts import RankCuts
from migrate.weights.command import reshard
from ms_models.train.checkpoints.pieces import assemble
from ms_models.train.checkpoints.run_directory import read_manifest
from ms_models.train.checkpoints.writing import Contents
from ms_models.train.optimizer import MOMENTS
from tests.ms_models.train.checkpoint_helpers import DEEPSEEK, make_saver
from tests.ms_models.train.run_helpers import LLAMA, read_tensors

LAYOUTS: dict[str, list[dict[str, int]]] = {
    "llama": [
        {},
        {"tp": 2, "dp": 2},
        {"dp": 3, "zero": 1},
        {"dp": 2, "tp": 2, "zero": 3},
        {"pp": 2, "cp": 2},
        {"tp": 4},
    ],
    "deepseek": [{}, {"dp": 2, "ep": 2, "zero": 1}, {"pp": 2, "dp": 2}, {"dp": 4, "ep": 2, "zero": 2}],
}
PAIRS = [(model, a, b) for model in LAYOUTS for a, b in itertools.permutations(range(len(LAYOUTS[model])), 2)]


class Cut:
    """A checkpoint in all layouts of a model; with tp 4, two ranks each hold copies of the same key and value heads."""

    def __init__(self, model: str, folder: Path) -> None:
        # Four ranks share 40 rows, and heads, not the 38 of other tests.
        self.config = {"llama": {**LLAMA, "intermediate_size": 40}, "deepseek": DEEPSEEK}[model]
        self.family = family_for_config(self.config)
        rng = np.random.default_rng(0)
        weights = {p.name: rng.random(p.shape, np.float32) for p in self.family.parameters(self.config)}
        states = {f"{kind}.{name}": rng.random(w.shape, np.float32) for kind in MOMENTS for name, w in weights.items()}
        contents = Contents(
            {weights_file(0): weights, optimizer_file(0): states},
            {random_file(0): b"{}", "config.json": json.dumps(self.config).encode()},
        )
        saver = make_saver(folder / "run", self.family.name)
        saver.begin(1, contents, {"step": 1}, 0.0)
        (saved,) = saver.finish()
        self.layouts = [ParallelLayout.from_dict(dict(layout)) for layout in LAYOUTS[model]]
        self.directories = [folder / str(number) for number in range(len(self.layouts))]
        for layout, directory in zip(self.layouts, self.directories, strict=True):
            assert reshard(saved.directory, directory, layout=layout).exit_code == 0
        self.cuts = [RankCuts(self.family, self.config, layout) for layout in self.layouts]

    def states(self, number: int, rank: int) -> dict[str, Arrangement]:
        return {spelled.name: arrangement for spelled, arrangement in self.cuts[number].tensors(rank, states=True)}

    def read(self, number: int, rank: int) -> tuple[Path, list[TensorEntry]]:
        path = self.directories[number] / optimizer_file(rank)
        return path, read_header(path)[0]

    def owners(self, number: int) -> list[int]:
        layout = self.layouts[number]
        return list(dict.fromkeys(layout.state_owner(rank) for rank in range(layout.world_size)))

    def assembled(self, before: int, now: int, rank: int) -> dict[str, np.ndarray]:
        return assemble(
            self.states(now, rank),
            self.owners(before),
            lambda owner: self.states(before, owner),
            lambda owner: self.read(before, owner),
            MOMENTS,
        )


@pytest.fixture(scope="module")
def cuts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Cut]:
    return {model: Cut(model, tmp_path_factory.mktemp(model)) for model in LAYOUTS}


@pytest.mark.parametrize(("model", "before", "now"), PAIRS)
def test_every_layout_is_made_from_every_other(cuts: dict[str, Cut], model: str, before: int, now: int) -> None:
    cut = cuts[model]
    for rank in cut.owners(now):
        found, expected = cut.assembled(before, now, rank), read_tensors(cut.read(now, rank)[0])
        assert set(found) == set(expected)
        assert any(value.any() for value in found.values())
        for name, value in expected.items():
            assert np.array_equal(found[name], value), f"rank {rank}: {name}"


def test_a_copy_that_differs_is_not_taken(cuts: dict[str, Cut], tmp_path: Path) -> None:
    """Norms are on both tensor-parallel ranks; which of two values is right nobody can tell."""
    cut, before = cuts["llama"], LAYOUTS["llama"].index({"tp": 4})
    changed = optimizer_file(1)

    def read(owner: int) -> tuple[Path, list[TensorEntry]]:
        path, entries = cut.read(before, owner)
        if path.name != changed:
            return path, entries
        raw = bytearray(path.read_bytes())
        entry = next(entry for entry in entries if entry.name == "exp_avg.model.norm.weight")
        raw[entry.offset] ^= 1
        (tmp_path / changed).write_bytes(bytes(raw))
        return tmp_path / changed, read_header(tmp_path / changed)[0]

    with pytest.raises(UserError, match=r"exp_avg.model.norm.weight differs from the copy that another rank saved"):
        assemble(cut.states(0, 0), cut.owners(before), lambda owner: cut.states(before, owner), read, MOMENTS)


def test_files_of_ranks_without_a_piece_are_not_read(cuts: dict[str, Cut]) -> None:
    cut, before = cuts["llama"], LAYOUTS["llama"].index({"pp": 2, "cp": 2})
    first = {name: held for name, held in cut.states(0, 0).items() if name.startswith("model.layers.0.")}
    read: list[int] = []

    def noted(owner: int) -> Any:
        read.append(owner)
        return cut.read(before, owner)

    assemble(first, cut.owners(before), lambda owner: cut.states(before, owner), noted, MOMENTS)
    assert read == [0]


def test_what_no_file_has_is_named(cuts: dict[str, Cut]) -> None:
    cut, before = cuts["llama"], LAYOUTS["llama"].index({"dp": 3, "zero": 1})
    owners = cut.owners(before)[:-1]
    with pytest.raises(UserError, match=r"elements of exp_avg\..* are missing"):
        assemble(
            cut.states(0, 0), owners, lambda owner: cut.states(before, owner), lambda o: cut.read(before, o), MOMENTS
        )


def test_masters_that_this_run_has_no_use_for_are_unexpected(cuts: dict[str, Cut]) -> None:
    cut = cuts["llama"]
    with pytest.raises(UserError, match=r"exp_avg_sq\..* unexpected"):
        assemble(cut.states(1, 0), cut.owners(0), lambda o: cut.states(0, o), lambda o: cut.read(0, o), MOMENTS[:1])


def test_the_manifest_of_what_was_cut_is_of_a_run(cuts: dict[str, Cut]) -> None:
    for directory in cuts["llama"].directories:
        assert read_manifest(directory).training["step"] == 1
