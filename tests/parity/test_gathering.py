"""Captures of ranks, written by hand, put together: what is missing is missing, and what disagrees is told."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from parity_models import make

from mappings.cutting import cut
from mappings.holdings import Holdings
from migrate.captures.store import Capture, CaptureWriter
from migrate.parity.layouts.disagreeing import disagreeing
from migrate.parity.layouts.gathering import gather
from migrate.parity.layouts.rank import POSITIONS
from migrate.parity.layouts.request import Request
from migrate.parity.plan import Plan
from migrate.parity.stages import Tolerances, judge
from migrate.report import Verdict

NORM, Q_PROJ = "model.norm.weight", "model.layers.1.self_attn.q_proj.weight"
Change = Callable[[int, str, dict[str, np.ndarray]], None]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make("qwen2", tmp_path_factory.mktemp("gathering") / "model", tie_word_embeddings=True)


def gathered(model: Path, text: str, tmp_path: Path, change: Change | None = None):  # type: ignore[no-untyped-def]
    """Cuts random tensors for a layout, changes them, and puts them together: (plan, whole, capture, disagreements)."""
    request = Request.read(text)
    plan = Plan.make(model, ["W", "F", "L"], tmp_path, request=request)
    layout = request.layout
    rng = np.random.default_rng(0)
    wholes = Holdings(plan.family, plan.config, Request.read("tp=1").layout, 0).tensors
    weights = {name: rng.standard_normal(held.shape).astype(np.float32) for name, held in wholes.items()}
    rows, length = plan.batch["input_ids"].shape
    outputs = {name: rng.standard_normal((rows, length, 6)).astype(np.float32) for name in plan.names("F")}
    captures = []
    for rank in range(layout.world_size):
        here = layout.coordinates(rank)
        own = np.arange(here["dp"] * rows // layout.dp, (here["dp"] + 1) * rows // layout.dp)
        positions = np.array_split(np.arange(length), 2 * layout.cp)
        local = np.arange(length)
        if layout.cp > 1:
            local = np.concatenate((positions[here["cp"]], positions[-1 - here["cp"]]))
        shown = np.split(local, layout.tp)[here["tp"]] if request.options.sequence_parallel else local
        held = Holdings(plan.family, plan.config, layout, rank).tensors
        stages = {
            "W": {name: cut(weights[name], one.whole, one.arrangement) for name, one in held.items()},
            POSITIONS: {"rows": own, "positions": local},
            "F": {name: value[own][:, local if name == "logits" else shown] for name, value in outputs.items()},
            "L": {"loss": np.array([2.5], np.float32), "valid_labels": np.array([7.0], np.float32)},
        }
        folder = tmp_path / f"rank{rank}"
        folder.mkdir()
        writer = CaptureWriter(folder, {"mindspore": "1"})
        for stage, tensors in stages.items():
            if change is not None:
                change(rank, stage, tensors)
            with writer.stage(stage) as stored:
                stored.update(tensors)
        captures.append(Capture.read(folder))
    (tmp_path / "whole").mkdir()
    capture, disagreements = gather(plan, request, captures, tmp_path / "whole")
    return plan, {"W": weights, "F": outputs}, capture, disagreements


@pytest.mark.parametrize(
    "text", ["tp=2", "tp=2,sequence_parallel=true", "dp=2", "pp=2", "cp=2", "tp=2,pp=2", "tp=2,dp=2,cp=2"]
)
def test_pieces_of_every_layout_make_the_whole(text: str, model: Path, tmp_path: Path) -> None:
    plan, whole, capture, disagreements = gathered(model, text, tmp_path)
    assert not disagreements
    for stage, tensors in whole.items():
        assert set(capture.names(stage)) == set(plan.names(stage))
        with capture.reader(stage) as read:
            for name, values in tensors.items():
                assert np.array_equal(read(name), values), (stage, name)


def test_a_rank_with_other_bits_is_told_and_fails_the_stage(model: Path, tmp_path: Path) -> None:
    def change(rank: int, stage: str, tensors: dict[str, np.ndarray]) -> None:
        if rank == 1 and stage == "W":
            tensors[NORM] = np.nextafter(tensors[NORM], np.float32(9))
        if rank == 1 and stage == "L":
            tensors["loss"] = tensors["loss"] + np.float32(1)

    plan, _, capture, disagreements = gathered(model, "tp=2", tmp_path, change)
    assert [(one.stage, one.name, one.rank) for one in disagreements] == [("W", NORM, 1), ("L", "loss", 1)]
    same = judge("W", capture, capture, plan.batch, plan.names("W"), Tolerances())
    assert same.stage.verdict is Verdict.PASS
    judged = disagreeing(same, "W", disagreements)
    assert judged.stage.verdict is Verdict.FAIL
    assert [(finding.code, finding.tensor) for finding in judged.findings] == [("P701", NORM)]
    assert disagreeing(same, "F", disagreements) is same


@pytest.mark.parametrize("text", ["tp=2", "pp=2"])
def test_what_a_rank_does_not_have_is_missing(text: str, model: Path, tmp_path: Path) -> None:
    def change(rank: int, stage: str, tensors: dict[str, np.ndarray]) -> None:
        if rank == 1 and stage == "W":
            del tensors[Q_PROJ]
        if rank == 1 and stage == "F" and text == "tp=2":
            tensors.pop("logits")

    plan, _, capture, disagreements = gathered(model, text, tmp_path, change)
    assert not disagreements
    assert set(plan.names("W")) - set(capture.names("W")) == {Q_PROJ}
    judged = judge("W", capture, capture, plan.batch, plan.names("W"), Tolerances())
    assert judged.stage.verdict is Verdict.FAIL and judged.findings[0].code == "P002"


def test_a_stage_that_a_rank_did_not_reach_could_not_run(model: Path, tmp_path: Path) -> None:
    request = Request.read("dp=2")
    plan = Plan.make(model, ["L"], tmp_path, request=request)
    loss = {"loss": np.array([2.5], np.float32), "valid_labels": np.array([7.0], np.float32)}
    captures = []
    for rank in range(2):
        folder = tmp_path / f"rank{rank}"
        folder.mkdir()
        with CaptureWriter(folder, {}).stage("L") as tensors:
            tensors.update(loss)
            if rank == 1:
                raise RuntimeError("no kernel for Foo")
        captures.append(Capture.read(folder))
    (tmp_path / "whole").mkdir()
    capture, _ = gather(plan, request, captures, tmp_path / "whole")
    judged = judge("L", capture, capture, plan.batch, [], Tolerances())
    assert judged.stage.verdict is Verdict.COULD_NOT_RUN
    assert capture.errors["L"] == "rank 1: RuntimeError: no kernel for Foo"
