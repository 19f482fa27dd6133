"""Modules built in both frameworks and compared: the sample passes, planted faults are found and located."""

from __future__ import annotations

from pathlib import Path

import pytest

from mappings.errors import UserError
from mappings.formats.weights_table import FILE, WeightsTable
from migrate.code.command import convert
from migrate.code.verify.modules import Outcome, compare_modules
from migrate.report import Verdict
from migrate.sides.recipes import make_input, read_recipes

ROOT = Path(__file__).parents[2]

SOURCE = """import os
import torch
import torch.nn as nn


class Half(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 3)
        self.outer = nn.Linear(3, 3)

    def forward(self, x):
        return {"y": self.outer(torch.relu(self.inner(x))), "pair": (x + 1, x.sum())}


class Dies(nn.Module):
    def __init__(self, where):
        super().__init__()
        self.w = nn.Parameter(torch.ones(3))
        self.where = where

    def forward(self, x):
        if self.where in os.environ.get("DIE_IN", ""):
            os._exit(3)
        return x * self.w


class Refuses(nn.Module):
    def __init__(self):
        super().__init__()
        raise ValueError("not on this machine")
"""
RECIPES = """modules:
- {name: first, module: net, build: Half(), inputs: [{floats: [2, 3]}]}
- {name: dies, module: net, build: 'Dies("mindspore")', inputs: [{floats: [2, 3]}]}
- {name: refuses, module: net, build: Refuses()}
- {name: last, module: net, build: Half(), inputs: [{floats: [4, 3]}]}
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """A repository, its conversion, recipes."""
    folder = tmp_path_factory.mktemp("compared")
    repo, out, recipes = folder / "repo", folder / "out", folder / "recipes.yaml"
    repo.mkdir()
    (repo / "net.py").write_text(SOURCE, encoding="utf-8")
    recipes.write_text(RECIPES, encoding="utf-8")
    convert(repo, out)
    return repo, out, recipes


def last_of(outcomes: list[Outcome], name: str) -> Outcome:
    return [outcome for outcome in outcomes if outcome.recipe.name == name][-1]


def test_the_sample_agrees_in_every_stage(tmp_path: Path) -> None:
    report = convert(ROOT / "samples/torch_gpt", tmp_path / "out", modules=ROOT / "samples/torch_gpt_modules.yaml")
    stages = {stage.name: stage for stage in report.stages}
    for name in ("norm", "whole model", "untied head"):
        assert stages[name].verdict is Verdict.PASS, stages[name].message
        assert stages[name].message == "build, weights, forward, gradients, training agree; compiled: equal"
    assert report.exit_code == 0
    # The training step was run eagerly and as a graph, agreed, and is switched to the graph.
    assert stages["training steps as graphs"].verdict is Verdict.PASS
    assert {found.code for found in report.findings} <= {"M405"}  # its generation step grows, and says so
    assert "backward_of(compute_loss, model, compiled=True)" in (tmp_path / "out" / "train.py").read_text()
    whole = WeightsTable.read(tmp_path / "out" / FILE).of_module("whole model").state()
    assert whole["blocks.1.attn.k_proj.weight"].shape == (24, 48) and whole["norm.weight"].same_as is None
    assert (whole["lm_head.weight"].same_as, whole["lm_head.weight"].dtype) == ("tok_emb.weight", "F32")
    assert (stages["whole model"].compared or 0) > 40


def test_faults_are_located_and_a_death_is_charged_to_its_module(
    project: tuple[Path, Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    repo, out, recipes = project
    text = (out / "net.py").read_text(encoding="utf-8")
    assert "self.outer(" in text
    # The converted code looks for MindSpore's word, the original would find PyTorch's: only one side dies.
    broken = text.replace("self.outer(", "1.001 * self.outer(", 1).replace('"DIE_IN"', '"DIE_IN_MINDSPORE"')
    monkeypatch.setenv("DIE_IN_MINDSPORE", "mindspore")
    (out / "net.py").write_text(broken, encoding="utf-8")
    try:
        outcomes = compare_modules(repo, out, read_recipes(recipes), steps=2)
    finally:
        (out / "net.py").write_text(text, encoding="utf-8")
    first = last_of(outcomes, "first")
    assert (first.stage, first.verdict) == ("forward", Verdict.FAIL)
    assert first.ran == {}
    assert first.message.startswith("y: relative 0.001") and "module's own code" in first.message
    dies = last_of(outcomes, "dies")
    assert (dies.stage, dies.verdict) == ("forward", Verdict.FAIL)
    assert "exit 3" in dies.message
    refuses = last_of(outcomes, "refuses")
    assert (refuses.stage, refuses.verdict) == ("build", Verdict.COULD_NOT_RUN)
    assert "net.py:31: ValueError: not on this machine" in refuses.message
    assert last_of(outcomes, "last").stage == "forward"  # the list goes on behind the death


def test_a_wrong_submodule_is_named(project: tuple[Path, Path, Path]) -> None:
    repo, out, recipes = project
    layers = out / "ms_compat" / "layers.py"
    text = layers.read_text(encoding="utf-8")
    wrong = text.replace("class Linear(", "class _Linear(", 1)
    wrong += (
        "\n\nclass Linear(_Linear):\n    def construct(self, *args):\n        return super().construct(*args) + 0.01\n"
    )
    layers.write_text(wrong, encoding="utf-8")
    try:
        outcomes = compare_modules(repo, out, read_recipes(recipes)[:1], steps=2)
    finally:
        layers.write_text(text, encoding="utf-8")
    first = last_of(outcomes, "first")
    assert (first.stage, first.verdict) == ("forward", Verdict.FAIL)
    assert first.message.endswith("the first module that differs is inner")


def test_unharmed_modules_pass(project: tuple[Path, Path, Path]) -> None:
    outcomes = compare_modules(project[0], project[1], read_recipes(project[2]), steps=3)
    for name in ("first", "dies", "last"):
        assert (last_of(outcomes, name).stage, last_of(outcomes, name).verdict) == ("training", Verdict.PASS)
    # the lines of functions that ran in PyTorch; not those of the module, of class bodies and of what was not called
    line = {text.strip(): number for number, text in enumerate(SOURCE.splitlines(), 1)}
    ran = set(last_of(outcomes, "first").ran["net.py"])
    forward = next(number for text, number in line.items() if "torch.relu" in text)
    assert {line["self.inner = nn.Linear(3, 3)"], forward} <= ran
    assert not {line["import os"], line["class Half(nn.Module):"], line["return x * self.w"]} & ran
    assert line["return x * self.w"] in last_of(outcomes, "dies").ran["net.py"]
    assert last_of(outcomes, "refuses").ran == {}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("modules: 3", "expected a list under `modules`"),
        ("modules: []", "expected a list under `modules`"),
        ("modules: [3]", "modules[0]: expected a mapping"),
        ("modules: [{module: a}]", "`build` is missing"),
        ("modules: [{module: a, build: B(), wat: 1}]", "unknown field 'wat'"),
        ("modules: [{module: a, build: B(), inputs: [{floats: 3}]}]", "floats takes a shape"),
        ("modules: [{module: a, build: B(), inputs: [{floats: [2], ones: [2]}]}]", "expected one of"),
        ("modules: [{module: a, build: B(), inputs: [{ids: [2]}]}]", "ids need `below`"),
        ("modules: [{module: a, build: B(), inputs: [{ones: [2], dtype: float8}]}]", "dtype must be one of"),
        ("modules: [{module: a, build: B()}, {module: a, build: B()}]", "two modules are named"),
        ("modules: [", "cannot be read"),
    ],
)
def test_bad_recipes_are_refused_in_words(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "recipes.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UserError) as error:
        read_recipes(path)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_inputs_depend_on_their_label_alone() -> None:
    assert (make_input({"floats": [3, 4]}, "a") == make_input({"floats": [3, 4]}, "a")).all()
    assert (make_input({"floats": [3, 4]}, "a") != make_input({"floats": [3, 4]}, "b")).any()
    ids = make_input({"ids": [50], "below": 3}, "a")
    assert set(ids.tolist()) == {0, 1, 2}
    assert ids.dtype == "int64"
    assert make_input({"range": [2, 3]}, "a").tolist() == [[0, 1, 2], [0, 1, 2]]
    assert make_input({"value": None}, "a") is None
    assert make_input("text", "a") == "text"
