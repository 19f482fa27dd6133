"""Resumed runs are on the same trajectory, in every layout and across layouts. `make test-grid` runs them.

Same trajectory: rows of the batch, learning rate, weights, moments and every random generator before each update are
those of the run that was not interrupted, bit by bit, on every rank; so are loss and gradient norm, and the checkpoint
at the end. Across layouts: weights and moments are, bit by bit, what `msmigrate weights reshard` makes of the
checkpoint, the rows are the same, and losses differ by the order of fp32 additions.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from harness import Launch, launch
from resume_cases import CASES, FAULTS, PAIRS, SAVED, STEPS

from mappings.formats.manifest import Manifest
from migrate.weights.command import reshard
from tests.ms_models.train.checkpoint_helpers import write_deepseek
from tests.ms_models.train.run_helpers import read_tensors, write_config, write_data, write_model

pytestmark = [pytest.mark.multi_process, pytest.mark.grid, pytest.mark.timeout(1500)]

WORKER = Path(__file__).with_name("resume_worker.py")
TOLERANCE = 1e-6  # as in test_train.py: the same fp32 numbers are added in another order
Run = tuple[int, Path, Launch]


@pytest.fixture(scope="module", params=list(CASES))
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    ranks, folder = request.param, tmp_path_factory.mktemp(f"resume{request.param}")
    models = {"llama": write_model(folder / "llama"), "deepseek": write_deepseek(folder / "deepseek")}
    data = write_data(folder / "data")
    for name, case in CASES[ranks].items():
        write_config(folder / f"{name}.yaml", models[case.model], data, folder / name, **case.sections())
    result = launch(WORKER, ranks, folder / "launch", str(folder), timeout=1200)
    result.check(ranks)
    return ranks, folder, result


def test_a_resumed_run_is_on_the_same_trajectory(run: Run) -> None:
    ranks, _, result = run
    for name in CASES[ranks]:
        for rank in range(ranks):
            whole, resumed = (result.ranks[rank][kind][name] for kind in ("whole", "resumed"))
            assert [record["updates"] for record in whole] == list(range(STEPS))
            assert resumed == whole[SAVED:], f"{name}, rank {rank}: {different(whole[SAVED:], resumed)}"


def test_the_checkpoint_at_the_end_is_the_same(run: Run) -> None:
    ranks, folder, _ = run
    for name in CASES[ranks]:
        end = f"step_{STEPS:08d}"
        compare(folder / name / end, folder / f"{name}-resumed" / end)


def test_what_is_left_out_is_seen(run: Run) -> None:
    """Planted faults: each shows in its own field before the first update already."""
    ranks, _, result = run
    first = next(iter(CASES[ranks]))
    for fault, field in FAULTS.items():
        for rank in range(ranks):
            whole, found = result.ranks[rank]["whole"][first][SAVED:], result.ranks[rank]["faults"][fault]
            assert field in different(whole, found), f"without {fault}, rank {rank}"


def test_a_checkpoint_cut_anew_is_exact(run: Run, tmp_path: Path) -> None:
    ranks, folder, result = run
    for before, now in PAIRS[ranks]:
        pair, saved = f"{before}-as-{now}", f"step_{SAVED:08d}"
        expected = tmp_path / pair
        done = reshard(folder / before / saved, expected, layout=CASES[ranks][now].parallel)
        assert done.exit_code == 0, pair
        compare_tensors(expected, folder / pair / saved)
        for rank in range(ranks):
            whole, found = result.ranks[rank]["whole"][now][SAVED:], result.ranks[rank]["pairs"][pair]
            assert [one["rows"] for one in found] == [one["rows"] for one in whole], pair
            reference = result.ranks[rank]["whole"][before][SAVED:]
            for one, other in zip(reference, found, strict=True):
                assert one["lr"] == other["lr"]
                for field in ("loss", "grad_norm"):
                    assert other[field] == pytest.approx(one[field], rel=TOLERANCE), f"{pair}: {field}"
            # Ranks are as many before and after, so that each goes on with its own random streams.
            assert found[0]["random"] == reference[0]["random"], pair


def compare(expected: Path, found: Path, only: tuple[str, ...] = ("model-", "optimizer-", "random-")) -> None:
    """Asserts that two checkpoints have the same files of ranks, byte for byte."""
    names = {name for name in Manifest.read(expected).files if name.startswith(only)}
    assert names == {name for name in Manifest.read(found).files if name.startswith(only)}
    assert len(names) >= 2
    for name in names:
        assert (expected / name).read_bytes() == (found / name).read_bytes(), f"{found / name}"


def compare_tensors(expected: Path, found: Path) -> None:
    """Asserts that two checkpoints have the same tensors in each file of weights and states, in whatever order."""
    names = sorted(name for name in Manifest.read(expected).files if name.endswith(".safetensors"))
    assert names == sorted(name for name in Manifest.read(found).files if name.endswith(".safetensors"))
    assert len(names) >= 2
    for name in names:
        before, after = read_tensors(expected / name), read_tensors(found / name)
        assert before.keys() == after.keys(), name
        for key, value in before.items():
            assert value.shape == after[key].shape and value.tobytes() == after[key].tobytes(), f"{found / name}: {key}"


def different(expected: list[dict[str, Any]], found: list[dict[str, Any]]) -> list[str]:
    """Fields that differ in the first record, and whether there are as many."""
    fields = [field for field in expected[0] if expected[0][field] != found[0][field]]
    return fields + (["number of records"] if len(expected) != len(found) else [])
