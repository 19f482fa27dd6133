"""Training runs with real processes: layouts agree, resumed runs are exact, and every end is clean.

All runs train the same tiny Llama (odd vocabulary, biases, untied head) on rows with very unequal masks.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from mappings.cutting import fill
from mappings.errors import UserError
from mappings.families import family_for_config
from mappings.holdings import Holdings
from mappings.layout import ParallelLayout
from migrate.weights.command import reshard
from ms_models.train.launch import starting as launching
from ms_models.train.launch import status
from ms_models.train.services.metrics_file import MEASURED, read_metrics
from tests.ms_models.train.run_helpers import LLAMA, read_tensors, write_config, write_data, write_model

pytestmark = [pytest.mark.multi_process, pytest.mark.timeout(400)]

# Layouts add the same fp32 numbers in another order. Measured over six steps: at most 8.4e-8. The planted faults below
# change the gradient norm by 0.026 to 0.35.
TOLERANCE = 1e-6
# Of the distance a parameter moved, in the Euclidean norm; AdamW blows up rounding noise where gradients vanish
# (the key bias, to which softmax is nearly blind). Measured at most 4.5e-5.
UPDATE_TOLERANCE = 3e-4
FAULT = 100  # a planted fault must exceed the tolerance this many times
LAYOUTS: dict[str, dict[str, dict[str, Any]]] = {
    "one": {"layout": {}, "train": {"accumulation": 4}},
    "dp2": {"layout": {"dp": 2, "zero": 1}, "train": {"accumulation": 2}},
    "tp2": {"layout": {"tp": 2}, "train": {"accumulation": 4}},
}
DERIVED = {"loss_ema", "loss_spread", "eval_perplexity"}


@dataclass(frozen=True)
class Place:
    """Where the runs of this module are."""

    root: Path
    model: Path
    data: Path

    def config(self, layout: str, name: str, **sections: dict[str, Any]) -> Path:
        chosen = {**LAYOUTS[layout], **sections}
        chosen["train"] = {**LAYOUTS[layout]["train"], **sections.get("train", {})}
        return write_config(self.root / f"{name}.yaml", self.model, self.data, self.root / name, **chosen)

    def curve(self, name: str) -> list[dict[str, Any]]:
        """Steps and evaluations; checkpoints come when they are complete, which no two runs share."""
        records = read_metrics(self.root / name / "metrics.jsonl")
        return [
            {key: value for key, value in record.items() if key not in MEASURED}
            for record in records
            if "checkpoint_s" not in record
        ]

    def run(self, layout: str, name: str) -> list[dict[str, Any]]:
        assert launching.launch(self.config(layout, name), echo=lambda line: None) == 0
        assert_nothing_left(self.root / name)
        return self.curve(name)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    root = tmp_path_factory.mktemp("train")
    return Place(root, write_model(root / "model"), write_data(root / "data"))


@pytest.fixture(scope="module")
def one(place: Place) -> list[dict[str, Any]]:
    return place.run("one", "one")


@pytest.fixture(scope="module")
def dp2(place: Place) -> list[dict[str, Any]]:
    return place.run("dp2", "dp2")


@pytest.fixture(scope="module")
def tp2(place: Place) -> list[dict[str, Any]]:
    return place.run("tp2", "tp2")


def assert_nothing_left(run: Path) -> None:
    left = [p for p in psutil.process_iter(["cmdline"]) if str(run) in " ".join(p.info["cmdline"] or [])]
    assert not left, f"processes survived: {left}"


def whole_weights(checkpoint: Path, layout: ParallelLayout) -> dict[str, np.ndarray]:
    """Parameters put together from the files of all weight owners."""
    family = family_for_config(LLAMA)
    result: dict[str, np.ndarray] = {}
    for rank in range(layout.tp):
        held = read_tensors(checkpoint / f"model-rank{rank:05d}.safetensors")
        for name, one in Holdings(family, LLAMA, layout, rank).tensors.items():
            whole = result.setdefault(name, np.full(one.whole.shape, np.nan, np.float32))
            if len(one.copies) > 1:
                assert rank == 0 or np.array_equal(whole, held[name]), f"{name}: replicas differ"
            fill(whole, one.whole, held[name], one.arrangement)
    return result


def differences(reference: list[dict[str, Any]], other: list[dict[str, Any]]) -> dict[str, float]:
    """Largest relative difference of each measured figure; the rest must be equal."""
    assert [record.keys() for record in reference] == [record.keys() for record in other]
    worst: dict[str, float] = {}
    for a, b in zip(reference, other, strict=True):
        for key, value in a.items():
            if key in ("loss", "grad_norm", "update_ratio", "eval_loss"):
                worst[key] = max(worst.get(key, 0.0), abs(b[key] / value - 1))
            elif key not in DERIVED:
                assert value == b[key], f"step {a['step']}: {key} {value} and {b[key]}"
    return worst


@pytest.mark.parametrize("name", ["dp2", "tp2"])
def test_layouts_agree_with_one_process(
    name: str, place: Place, one: list[dict[str, Any]], request: pytest.FixtureRequest
) -> None:
    other = request.getfixturevalue(name)
    assert [record["step"] for record in one] == [1, 2, 3, 3, 4, 5, 6, 6]
    assert max(differences(one, other).values()) <= TOLERANCE
    layout = ParallelLayout.from_dict(LAYOUTS[name]["layout"])
    start = read_tensors(place.model / "model.safetensors")
    expected = whole_weights(place.root / "one" / "step_00000006", ParallelLayout())
    found = whole_weights(place.root / name / "step_00000006", layout)
    assert set(expected) == set(found) == set(start)
    for parameter, value in expected.items():
        moved = np.linalg.norm(value - start[parameter])
        assert moved > 0, f"{parameter} did not train"
        assert np.linalg.norm(found[parameter] - value) <= UPDATE_TOLERANCE * moved, parameter


@pytest.mark.parametrize("name", ["dp2", pytest.param("tp2", marks=pytest.mark.grid)])
def test_a_resumed_run_is_the_uninterrupted_one(name: str, place: Place, request: pytest.FixtureRequest) -> None:
    whole = request.getfixturevalue(name)
    resumed = f"{name}_resumed"
    config = place.config(name, resumed)
    shutil.copytree(place.root / name, place.root / resumed)
    shutil.rmtree(place.root / resumed / "step_00000006")
    (place.root / resumed / "LATEST").write_text("step_00000003\n")
    assert launching.launch(config, resume=True, echo=lambda line: None) == 0
    assert place.curve(resumed) == whole
    for path in (place.root / name / "step_00000006").glob("*-rank*"):
        assert (place.root / resumed / "step_00000006" / path.name).read_bytes() == path.read_bytes(), path.name
    assert_nothing_left(place.root / resumed)


@pytest.mark.parametrize(("start", "wanted"), [("dp2", "tp2"), pytest.param("tp2", "dp2", marks=pytest.mark.grid)])
def test_a_run_goes_on_in_another_layout(
    start: str, wanted: str, place: Place, one: list[dict[str, Any]], request: pytest.FixtureRequest
) -> None:
    """Cut anew after step 3, with the same global batch of 8 rows; the steps that follow are those of one process."""
    request.getfixturevalue(start)
    name, lines = f"{start}_as_{wanted}", list[str]()
    config = place.config(wanted, name)
    shutil.copytree(place.root / start, place.root / name)
    with pytest.raises(UserError, match=r"was saved with layout .*; add --reshard to cut it anew"):
        launching.launch(config, resume_from="step_00000003", echo=lines.append)
    assert launching.launch(config, resume_from="step_00000003", reshard=True, echo=lines.append) == 0, lines
    assert any(line.startswith("reshard: step_00000003 of layout") for line in lines), lines
    assert any(
        "going back to step_00000003: step_00000006 will be kept as step_00000006.abandoned" in line for line in lines
    ), lines
    assert (place.root / name / "step_00000006.abandoned").is_dir()
    assert max(differences(one, place.curve(name)).values()) <= TOLERANCE
    assert_nothing_left(place.root / name)


@pytest.mark.grid
@pytest.mark.parametrize(("start", "way"), [("tp2", ["dp2"]), ("dp2", ["one", "tp2"])])
def test_a_run_goes_on_from_what_the_weight_tool_cut(
    start: str, way: list[str], place: Place, one: list[dict[str, Any]], request: pytest.FixtureRequest
) -> None:
    """Cut by `msmigrate weights reshard` after step 3, same global batch; the steps that follow are one process's."""
    request.getfixturevalue(start)
    checkpoint, name = place.root / start / "step_00000003", f"{start}_cut_{way[-1]}"
    for number, layout in enumerate(way):
        last = number == len(way) - 1
        out = place.root / (name if last else f"{name}_{layout}") / "step_00000003"
        out.parent.mkdir()
        wanted = ParallelLayout.from_dict(LAYOUTS[layout]["layout"])
        assert reshard(checkpoint, out, layout=wanted).exit_code == 0
        checkpoint = out
    lines: list[str] = []
    assert launching.launch(place.config(way[-1], name), resume=True, echo=lines.append) == 0, "\n".join(lines)
    assert any("changed since step_00000003: layout." in line for line in lines), lines
    records = place.curve(name)
    assert [record["step"] for record in records] == [4, 5, 6, 6]
    assert max(differences([record for record in one if record["step"] > 3], records).values()) <= TOLERANCE
    assert_nothing_left(place.root / name)


def test_one_process_stopped_and_resumed_is_the_uninterrupted_run(place: Place, one: list[dict[str, Any]]) -> None:
    config = place.config("one", "stopped")
    lines: list[str] = []
    assert launching.launch(config, stop_after=2, echo=lines.append) == 0
    assert any("stopped after step 2 of 6; go on with --resume" in line for line in lines)
    assert [record["step"] for record in place.curve("stopped")] == [1, 2]
    assert launching.launch(config, resume=True, echo=lines.append) == 0
    assert place.curve("stopped") == one


@pytest.mark.parametrize(
    ("fault", "layout", "seen_in"),
    [
        # The first and the last are seen in `test_grid.py` as well.
        pytest.param("no reduction over dp", "dp2", "grad_norm", marks=pytest.mark.grid),
        ("average of rank averages", "dp2", "grad_norm"),
        pytest.param("replicated weights counted on every rank", "tp2", "grad_norm", marks=pytest.mark.grid),
    ],
)
def test_planted_faults_are_detected(
    fault: str, layout: str, seen_in: str, place: Place, one: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launching, "WORKER", "faulty_worker")
    monkeypatch.setenv("MSMIGRATE_TEST_FAULT", fault)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    name = fault.replace(" ", "_")
    # Two steps, not compiled: the first gradient norm already tells.
    config = place.config(layout, name, train={"eval_every": 0, "jit": False})
    assert launching.launch(config, stop_after=2, echo=lambda line: None) == 0
    reference = [{**record, "tokens": 0} for record in one if "loss" in record][:2]
    found = [{**record, "tokens": 0} for record in place.curve(name)]
    assert differences(reference, found)[seen_in] > FAULT * TOLERANCE


def test_a_killed_worker_ends_the_run_with_the_reason(place: Place) -> None:
    config = place.config("dp2", "killed", train={"steps": 100000, "jit": False, "eval_every": 0})
    lines: list[str] = []
    killed_at = 0.0

    def kill_rank_1(line: str) -> None:
        nonlocal killed_at
        lines.append(line)
        if line.startswith("step") and not killed_at:
            os.kill(status.read_all(place.root / "killed" / "logs")[1].pid, signal.SIGKILL)
            killed_at = time.monotonic()

    assert launching.launch(config, echo=kill_rank_1) == 1
    # Left alone, the other rank waits for minutes in a collective.
    assert time.monotonic() - killed_at < 30
    assert any("failed: rank 1: died" in line for line in lines), lines
    assert_nothing_left(place.root / "killed")


def test_a_fault_of_the_input_that_only_a_rank_can_see_is_one_line(place: Place, tmp_path: Path) -> None:
    broken = write_model(tmp_path / "broken")
    config = broken / "config.json"
    config.write_text(config.read_text().replace('"hidden_act": "silu"', '"hidden_act": "gelu"'))
    run = place.config("dp2", "broken", model={"path": str(broken)})
    with pytest.raises(UserError, match=r"^rank \d: .*hidden_act") as caught:
        launching.launch(run, echo=lambda line: None)
    assert "\n" not in str(caught.value)
    assert_nothing_left(place.root / "broken")


@pytest.mark.parametrize(
    ("number", "layout"),
    [pytest.param(signal.SIGINT, "dp2", marks=pytest.mark.grid), (signal.SIGTERM, "one"), (signal.SIGKILL, "dp2")],
)
def test_ending_the_command_ends_every_process(number: signal.Signals, layout: str, place: Place) -> None:
    name = f"ended_{number.name}"
    config = place.config(layout, name, train={"steps": 100000, "jit": False, "eval_every": 0})
    command = [sys.executable, "-c", "import sys; from migrate.cli import main; sys.exit(main())", "train", str(config)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if line.startswith("step"):
                process.send_signal(number)
                break
        rest = process.stdout.read()
        code = process.wait(60)
    assert lines, "the run never stepped"
    if number == signal.SIGKILL:
        # Nobody is left to clean up: the kernel ends the ranks, one generation after the other.
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline and any(
            str(config.with_suffix("")) in " ".join(p.info["cmdline"] or []) for p in psutil.process_iter(["cmdline"])
        ):
            time.sleep(0.2)
    else:
        assert code == 128 + number
        assert f"interrupted by {number.name}; every process was ended" in rest
        assert "Traceback" not in rest
    assert_nothing_left(place.root / name)
