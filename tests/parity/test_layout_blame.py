"""Whose fault a stage is that fails under a layout: one process and parts of the layout are asked."""

from __future__ import annotations

import json
import os
from pathlib import Path

import planted_rank
import pytest
from parity_models import make

from migrate.parity import command
from migrate.parity.layouts import launching
from migrate.parity.layouts.blame import LOOK, ONE, RANK, Blame, blame
from migrate.parity.layouts.repeating import FACT
from migrate.parity.layouts.request import Request
from migrate.parity.layouts.smaller import smaller
from migrate.progress import quiet
from migrate.report import Verdict


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("tp=2", []),
        ("tp=2,dp=3", ["tp=2", "dp=3"]),
        ("tp=2,sequence_parallel=true", ["tp=2"]),
        ("dp=4,ep=2,zero=2", ["dp=4", "dp=4 ep=2", "dp=4 zero=2"]),
        ("pp=2,vpp=2,schedule=interleaved", ["pp=2", "pp=2 vpp=2"]),
        ("pp=2,schedule=zero_bubble,cp=2,context=ulysses", [
            "cp=2 context=ulysses", "pp=2", "pp=2 schedule=zero_bubble",
        ]),
        ("tp=2,recompute=block", ["one process recompute=block", "tp=2"]),
    ],
)  # fmt: skip
def test_parts_of_a_layout_simplest_first(text: str, parts: list[str]) -> None:
    request = Request.read(text)
    assert [str(one) for one in smaller(request)] == parts
    # They can share the batch: rows for their replicas and stages, positions for their parts.
    for one in smaller(request):
        assert request.rows % one.rows == 0 and request.parts % one.parts == 0


def blamed(text: str, failing: dict[str, Verdict]) -> tuple[Blame, list[str]]:
    """With verdicts by layout; all others pass."""
    asked = []

    def verdict_of(request: Request | None) -> Verdict:
        asked.append(ONE if request is None else RANK if request == Request() else str(request))
        return failing.get(asked[-1], Verdict.PASS)

    return blame("G gradients", Request.read(text), verdict_of, quiet), asked


def test_the_first_part_that_fails_alone_is_guilty() -> None:
    found, asked = blamed("tp=2,dp=2,zero=2", {"dp=2": Verdict.FAIL, "dp=2 zero=2": Verdict.FAIL})
    assert asked == [ONE, RANK, "tp=2", "dp=2"] == list(found.facts)
    assert [one.code for one in found.findings] == ["P702"] and not found.of_model
    assert "the fault is the layout's: dp=2 alone differs; alone these agree: tp=2" in found.findings[0].message
    assert LOOK["dp"] in found.findings[0].fix and LOOK["tp"] not in found.findings[0].fix


def test_what_is_added_to_an_axis_that_agrees_is_guilty() -> None:
    found, _ = blamed("dp=2,zero=2", {})
    assert "it takes dp=2 zero=2 as a whole; alone these agree: dp=2" in found.findings[0].message
    assert LOOK["zero"] in found.findings[0].fix and LOOK["dp"] not in found.findings[0].fix
    single, asked = blamed("tp=2", {})
    assert asked == [ONE, RANK] and "it is that of tp=2" in single.findings[0].message
    assert LOOK["tp"] in single.findings[0].fix


def test_a_fault_of_the_step_itself_is_no_axis() -> None:
    found, asked = blamed("tp=2,dp=2", {RANK: Verdict.FAIL, "tp=2": Verdict.FAIL})
    assert asked == [ONE, RANK]
    assert "the fault is the runner's: one rank alone differs" in found.findings[0].message
    assert LOOK[RANK] in found.findings[0].fix and LOOK["tp"] not in found.findings[0].fix


def test_a_part_that_could_not_run_is_told() -> None:
    found, _ = blamed("tp=2,pp=2", {"pp=2": Verdict.COULD_NOT_RUN})
    assert "it takes tp=2 pp=2 as a whole; alone these agree: tp=2; could not run: pp=2" in found.findings[0].message


@pytest.mark.parametrize(
    ("alone", "code", "of_model"), [(Verdict.FAIL, "P703", True), (Verdict.COULD_NOT_RUN, "P001", False)]
)
def test_one_process_is_asked_first(alone: Verdict, code: str, of_model: bool) -> None:
    found, asked = blamed("tp=2,dp=2", {ONE: alone})
    assert asked == [ONE]
    assert ([one.code for one in found.findings], found.of_model) == ([code], of_model)


@pytest.mark.grid
@pytest.mark.multi_process
@pytest.mark.parametrize(
    ("fault", "stage", "layout", "verdicts", "words"),
    [
        ("loss not divided over dp", "G", "dp=2,zero=1", ["pass", "fail"], "the runner's: one rank alone differs"),
        ("divided by the tokens of this replica", "L", "dp=2,zero=1", ["pass", "pass", "fail"], "dp=2 alone differs"),
        (
            "norm of this rank's rows", "U", "dp=2,zero=2", ["pass", "pass", "pass"],
            "it takes dp=2 zero=2 as a whole; alone these agree: dp=2",
        ),
    ],
    ids=["the step", "an axis alone", "what is added to it"],
)  # fmt: skip
def test_a_fault_of_ranks_is_the_layouts(
    fault: str,
    stage: str,
    layout: str,
    verdicts: list[str],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tests = Path(__file__).parent
    paths = [str(tests), str(tests.parent / "shared"), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    monkeypatch.setenv(planted_rank.FAULT, fault)
    monkeypatch.setattr(launching, "MODULE", "planted_rank")
    report = command.model(make("llama", tmp_path / "model"), stages=[stage], layout=layout, timeout_s=300)
    assert report.exit_code == 1
    asked = [ONE, RANK, "dp=2"][: len(verdicts)]
    assert report.facts[FACT] == dict(zip(asked, verdicts, strict=True)), report.stages
    found = [one for one in report.findings if one.code == "P702"]
    assert len(found) == 1 and words in found[0].message


@pytest.mark.grid
@pytest.mark.multi_process
def test_a_fault_of_the_model_is_explained_in_one_process(tmp_path: Path) -> None:
    directory, port = make("llama", tmp_path / "model"), make("llama", tmp_path / "port")
    config = json.loads((port / "config.json").read_text())
    (port / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 1e-4}))
    report = command.model(directory, candidate=port, stages=["F"], layout="tp=2", timeout_s=300)
    assert report.facts[FACT] == {ONE: "fail"}
    codes = {one.code for one in report.findings}
    assert "P703" in codes and "P202" not in codes
    guilty = [one for one in report.findings if one.code == "P203"]
    assert guilty[0].tensor == "model.layers.0.input_layernorm" and "config.rms_norm_eps" in guilty[0].fix


@pytest.mark.grid
@pytest.mark.multi_process
def test_force_and_curves_under_a_layout(tmp_path: Path) -> None:
    directory = make("llama", tmp_path / "model")
    report = command.model(directory, stages=["F"], layout="dp=2", force=True, curve_steps=5, timeout_s=300)
    assert report.exit_code == 0, report.findings
    alone = ["F activations, one process", "F alone, one process"]
    names = [one.name for one in report.stages]
    assert names == ["F activations", "C curve, loss", "C curve, gradient norm", *alone]
    assert all(one.compared for one in report.stages)
    assert {row["verdict"] for row in report.facts["modules"]} == {"agrees"}
