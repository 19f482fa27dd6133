"""Modules of recipes as graphs: equal, eager with the line, and a planted fault that keeps a step eager."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mappings.errors import UserError
from migrate.code.command import convert
from migrate.report import Report, Verdict
from migrate.sides.recipes import read_recipes

NET = """
import itertools

import torch
from torch import nn

NUMBERS = itertools.chain([1.0] * 14, itertools.count(2))  # as many as both sides need before graphs are compared


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(3, 4), nn.BatchNorm1d(4)

    def forward(self, x):
        return {"y": self.norm(self.linear(x)), "mean": x.mean()}


class Reads(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(3))

    def forward(self, x):
        return x * self.w * x.abs().max().item()


class Scaled(nn.Module):
    def __init__(self, scales):
        super().__init__()
        self.linear, self.scales = nn.Linear(3, 1), scales

    def forward(self, x):
        return self.linear(x) * (1.0 if self.scales is None else next(self.scales))
"""
TRAIN = """
import torch

from net import Normed, Scaled


def fit(model, part):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        x = torch.randn(5, 3)
        optimizer.zero_grad()
        loss = part(model(x)).pow(2).mean()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    fit(Scaled(None), lambda y: y)
"""
RECIPES = """
modules:
- {name: normed, module: net, build: Normed(), inputs: [{floats: [5, 3]}], training: true}
- {name: reads, module: net, build: Reads(), inputs: [{floats: [2, 3]}]}
- {name: scaled, module: net, build: Scaled(NUMBERS), inputs: [{floats: [2, 3]}]}
- {name: left out, module: net, build: Normed(), inputs: [{floats: [5, 3]}], compiled: false}
programs:
- {run: train.py}
"""


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Report, Path]:
    folder = tmp_path_factory.mktemp("graphs")
    repository, recipes = folder / "repository", folder / "recipes.yaml"
    repository.mkdir()
    (repository / "net.py").write_text(NET, encoding="utf-8")
    (repository / "train.py").write_text(TRAIN, encoding="utf-8")
    recipes.write_text(RECIPES, encoding="utf-8")
    return convert(repository, folder / "out", modules=recipes), folder / "out"


def row(report: Report, name: str) -> dict[str, Any]:
    return next(row for row in report.facts["modules_as_graphs"] if row["module"] == name)


def test_running_statistics_and_gradients_are_equal(converted: tuple[Report, Path]) -> None:
    found = row(converted[0], "normed")
    assert (found["verdict"], found["compiled"]) == ("pass", "equal")
    stage = next(stage for stage in converted[0].stages if stage.name == "normed")
    assert stage.verdict is Verdict.PASS and stage.message.endswith("training agree; compiled: equal")
    assert "* normed: equal\n" in (converted[1] / "MIGRATION.md").read_text(encoding="utf-8")


def test_a_module_that_cannot_be_compiled_is_no_failure(converted: tuple[Report, Path]) -> None:
    text = (converted[1] / "net.py").read_text(encoding="utf-8")
    line = text[: text.index(".item()")].count("\n") + 1
    found = row(converted[0], "reads")
    assert found["verdict"] == "skipped"
    assert found["compiled"] == f"does not compile: net.py:{line}: a value is read back to Python"
    stage = next(stage for stage in converted[0].stages if stage.name == "reads")
    assert stage.verdict is Verdict.PASS


def test_a_graph_that_differs_is_a_failure_and_no_step_with_the_class_is_compiled(
    converted: tuple[Report, Path],
) -> None:
    report, out = converted
    found = row(report, "scaled")
    assert found["verdict"] == "fail" and "compiled and eager differ: result 0 by" in found["compiled"]
    assert [f.code for f in report.findings if "scaled: compiled: forward" in f.message] == ["M603"]
    assert report.exit_code == 1
    # The step itself, with other scales, would agree.
    (step,) = report.facts["execution"]
    assert step["mode"] == "eager" and step["reason"].startswith("a module differs as a graph: scaled: ")
    assert "compiled=True" not in (out / "train.py").read_text(encoding="utf-8")


def test_modules_may_be_left_out(converted: tuple[Report, Path], tmp_path: Path) -> None:
    assert [row["module"] for row in converted[0].facts["modules_as_graphs"]] == ["normed", "reads", "scaled"]
    path = tmp_path / "recipes.yaml"
    path.write_text("compiled: false\n" + RECIPES, encoding="utf-8")
    assert not any(recipe.compiled for recipe in read_recipes(path))
    path.write_text("compiled: perhaps\n" + RECIPES, encoding="utf-8")
    with pytest.raises(UserError, match="true or false"):
        read_recipes(path)
