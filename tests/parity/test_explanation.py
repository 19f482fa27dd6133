"""Planted faults, several at once: each is named guilty at its place, and nothing that only inherits."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import explained_plants
import pytest
from parity_models import CONFIGS, make
from plants import environment

from migrate.captures.store import Capture
from migrate.parity import command
from migrate.parity.explain.alone import guilty
from migrate.parity.explain.explanation import Evidence, Explanation, explain
from migrate.parity.explain.running import suspects_of
from migrate.parity.explain.tree import Tree
from migrate.parity.plan import Plan
from migrate.parity.recording import INPUTS
from migrate.parity.tolerances import Tolerances
from migrate.processes import run
from migrate.report import Verdict

TWO = "eps in layer 0 and gelu in layer 1"


@pytest.fixture(scope="module")
def captures(tmp_path_factory: pytest.TempPathFactory) -> tuple[Plan, Capture, Path]:
    """(the comparison, the PyTorch side, a folder per plant)."""
    out = tmp_path_factory.mktemp("explained")
    plan = Plan.make(make("qwen2", out / "model", tie_word_embeddings=True), ("F",), out)
    reference = command._capture("PyTorch", plan.job, out / "reference", 120)
    assert isinstance(reference, Capture), reference
    program = [sys.executable, explained_plants.__file__, str(out / "reference" / "job.json"), str(out / "reference")]
    outcome = run([*program, str(out)], 300, environment())
    assert outcome.returncode == 0, outcome.reason()
    return plan, reference, out


def evidence(name: str, captures: tuple[Plan, Capture, Path]) -> Evidence:
    plan, reference, out = captures
    sides = (Capture.read(out / name / kind) for kind in ("free", "forced"))
    return Evidence(reference, *sides, plan.batch["attention_mask"], Tolerances())


def explained(name: str, captures: tuple[Plan, Capture, Path]) -> Explanation:
    plan = captures[0]
    return explain(evidence(name, captures), suspects_of(plan.family, plan.config))


@pytest.mark.parametrize("name", explained_plants.GUILTY)
def test_each_fault_is_named_and_nothing_else(name: str, captures: tuple[Plan, Capture, Path]) -> None:
    proof = evidence(name, captures)
    assert isinstance(proof.forced, Capture)
    tree = Tree.of(proof.reference.names("F"))
    found = guilty(tree, proof.looking(proof.forced, INPUTS), proof.looking(proof.forced, "F"))
    places = [(one.place.module, one.place.into, tuple(one.others)) for one in found]
    assert places == [fault[1:] for fault in explained_plants.GUILTY[name]]
    findings = explained(name, captures).findings
    assert [(one.code, one.tensor) for one in findings] == [fault[:2] for fault in explained_plants.GUILTY[name]]


def test_everything_else_that_differs_is_an_heir(captures: tuple[Plan, Capture, Path]) -> None:
    result = explained(TWO, captures)
    verdicts = {row["name"]: row["verdict"] for row in result.rows}
    wrong = {name for name, verdict in verdicts.items() if verdict == "guilty"}
    assert wrong == {"model.layers.0.input_layernorm", "model.layers.1.mlp"}
    assert verdicts["model.embed_tokens"] == "agrees"
    heirs = [name for name, verdict in verdicts.items() if verdict == "heir"]
    assert {"model.layers.0.self_attn.o_proj", "model.layers.1.mlp.down_proj", "model.norm", "logits"} <= set(heirs)
    assert len(verdicts) == len(captures[0].job.modules) + 1 == len(wrong) + len(heirs) + 1


def test_the_descent_goes_to_the_first_and_compares_only_the_way_there(captures: tuple[Plan, Capture, Path]) -> None:
    result = explained(TWO, captures)
    assert result.path == ["model.layers.0", "model.layers.0.input_layernorm"]
    assert result.looked_at == 5  # embedding, layer, norm; inputs of layer and norm


def test_a_guilty_module_comes_with_its_errors_and_its_setting(captures: tuple[Plan, Capture, Path]) -> None:
    norm, mlp = explained(TWO, captures).findings
    assert "input error 0, output error 0.0004" in norm.message and "worst element [" in norm.message
    assert "(1) config.rms_norm_eps = 1e-06, handed to Qwen2RMSNorm" in norm.fix
    assert "between up_proj and down_proj" in mlp.message
    assert "config.hidden_act = 'silu' chooses the activation" in mlp.fix


def test_without_a_forced_pass_the_first_is_named_and_the_reason_given(captures: tuple[Plan, Capture, Path]) -> None:
    proof = evidence(TWO, captures)
    (found,) = explain(replace(proof, forced="no process"), lambda place: ()).findings
    assert (found.code, found.tensor) == ("P206", "model.layers.0.input_layernorm")
    assert "its input agrees; forced pass: no process" in found.message


def test_rounding_that_adds_up_is_nobodys_fault(captures: tuple[Plan, Capture, Path]) -> None:
    proof = evidence("none", captures)
    assert isinstance(proof.forced, Capture)
    largest = []
    for capture in (proof.candidate, proof.forced):
        looks = [
            look for stage in (INPUTS, "F") for look in map(proof.looking(capture, stage), captures[0].job.modules)
        ]
        largest.append(max(look.difference.relative for look in looks if look is not None))
    free, alone = largest
    assert free > 1.2 * alone, "what has added up is more than what each module rounds"
    tight = replace(proof, tolerances=Tolerances(activations=1.1 * alone))
    found = explain(tight, lambda place: ()).findings
    assert [one.code for one in found] == ["P205"]


@pytest.mark.slow
@pytest.mark.parametrize("family", CONFIGS)
def test_no_module_of_any_family_is_guilty_without_a_fault(family: str, tmp_path: Path) -> None:
    """Forwards and backwards."""
    report = command.model(make(family, tmp_path), stages=["F", "G"], force=True, timeout_s=600)
    forward, alone, _, backward = report.stages
    assert [one.name for one in (alone, backward)] == ["F alone", "G alone"]
    assert all(one.verdict is Verdict.PASS for one in report.stages), report.findings
    assert forward.compared == alone.compared == backward.compared
    assert alone.figures["not judged"] == 0 == backward.figures["not judged"]
