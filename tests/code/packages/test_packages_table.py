"""The table of `make test-packages`: what counts for a goal, and what the recipes of a package leave unsaid."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fetch import HERE, read_package
from run import count_outcomes
from table import PackageResult, as_markdown, goals

from migrate.code.verify.modules import Outcome
from migrate.report import Verdict
from migrate.sides.recipes import Recipe

PASS, FAIL, COULD_NOT_RUN = Verdict.PASS, Verdict.FAIL, Verdict.COULD_NOT_RUN
RECIPE = Recipe(name="a.B", module="a", build="B()")

WHOLE = {"lines": 9, "files": 2, "parsed": 2, "valid": 2, "findings": 0, "imported_in_torch": 2, "imported": 2}


def result(**figures: Any) -> PackageResult:
    return PackageResult("p", "1.0", **{**WHOLE, **figures})


def counted(*stages: tuple[str, Verdict]) -> PackageResult:
    found = result(recipes=1)
    count_outcomes(found, RECIPE, [Outcome(RECIPE, stage, verdict, f"{stage}: why") for stage, verdict in stages])
    return found


def test_a_class_counts_for_every_stage_that_it_passed() -> None:
    found = counted(("build", PASS), ("weights", PASS), ("forward", PASS), ("gradients", FAIL))
    assert (found.torch_builds, found.passed) == (1, {"build": 1, "weights": 1, "forward": 1})
    assert [(miss.name, miss.stage, miss.reason) for miss in found.misses] == [("a.B", "gradients", "gradients: why")]


def test_what_pytorch_cannot_build_is_a_miss_and_a_goal_that_is_not_reached() -> None:
    found = counted(("build", COULD_NOT_RUN))
    assert (found.torch_builds, [miss.stage for miss in found.misses]) == (0, ["build"])
    assert "recipes that build in PyTorch" in [goal.name for goal in goals([found]) if not goal.reached]


def test_a_class_that_fails_in_mindspore_counts_as_built_in_pytorch() -> None:
    found = counted(("build", FAIL))
    assert (found.torch_builds, found.passed) == (1, {})
    assert not goals([found])[-1].reached


def test_outputs_without_gradients_are_no_miss() -> None:
    found = counted(("build", PASS), ("weights", PASS), ("forward", PASS), ("gradients", COULD_NOT_RUN))
    assert (found.misses, found.no_gradients) == ([], ["a.B"])


@pytest.mark.parametrize(
    ("figures", "missed"),
    [
        ({}, []),
        ({"valid": 1}, ["valid Python"]),
        ({"imported": 1}, ["files that import"]),
        ({"imported_in_torch": 1, "imported": 1}, ["files that import in PyTorch"]),
        ({"recipes": 1, "torch_builds": 1, "passed": {"forward": 1}}, []),
    ],
)
def test_goals(figures: dict[str, int], missed: list[str]) -> None:
    assert [goal.name for goal in goals([result(**figures)]) if not goal.reached] == missed


def test_the_report_has_a_row_of_sums_and_every_reason() -> None:
    text = as_markdown([counted(("build", FAIL)), result()], "commit abc")
    assert text.splitlines()[4].split("|")[1].strip() == "total"
    assert "* a.B: build: build: why" in text
    assert "\ncommit abc.\n" in text


@pytest.mark.parametrize("path", sorted(HERE.glob("*.yaml")), ids=lambda path: path.stem)
def test_packages_say_what_they_are(path: Path) -> None:
    package = read_package(path)
    assert package.import_name == path.stem
    names = [recipe.name for recipe in package.recipes]
    assert len(names) == len(set(names))
    assert not [name for name in package.left_out if name in names]  # a class has a recipe or a reason, not both
    assert not set(package.beside) & {"torch", "numpy", "mindspore", "transformers"}
    for recipe in package.recipes:
        compile(recipe.build, path.name, "eval")
