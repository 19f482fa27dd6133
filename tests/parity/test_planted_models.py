"""Every fault planted into ms_models is found at its stage and place, the guilty module is named, and no heir.

What changes nothing passes everywhere, and nobody is guilty.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import plants
import pytest
from parity_models import make

from migrate.captures.store import Capture
from migrate.parity import command
from migrate.parity.backward.explanation import BackwardEvidence, explain_backward
from migrate.parity.backward.naming import FORCED, FREE
from migrate.parity.backward.running import capture_torch
from migrate.parity.explain.explanation import Evidence, explain
from migrate.parity.plan import Plan
from migrate.parity.stages import Tolerances, judge
from migrate.processes import run
from migrate.report import Verdict

EXPLAINED = ("F", "G")
STAGES = ("W", "F", "L", "G")  # faults of the optimizer are planted in test_updates.py
NORMAL = ("plants_qwen2",)
FAMILIES = "qwen3_moe gpt2 gpt_neox gemma2 gemma3_text mistral mixtral deepseek_v3 glm4 phi3 bert roberta"
OTHERS = tuple(f"plants_{family}" for family in FAMILIES.split())


def cases(attribute: str) -> list[Any]:
    """(module of plants, name) of everything that a module lists."""
    marks = {name: [] if name in NORMAL else [pytest.mark.slow] for name in (*NORMAL, *OTHERS)}
    return [
        pytest.param(module, name, marks=mark, id=f"{module.removeprefix('plants_')}-{name}")
        for module, mark in marks.items()
        for name in getattr(importlib.import_module(module), attribute)
    ]


@dataclass(frozen=True)
class Captures:
    """Both sides of a model: the reference, its rounding, and ms_models with each fault."""

    plan: Plan
    reference: Capture
    exact: Capture
    """The reference in fp64."""
    exact_backward: Capture
    """The reference's backward pass in fp64."""
    out: Path
    """A folder per fault, and the references."""

    def first_bad(self, name: str) -> tuple[str | None, str | None]:
        """(first stage that does not pass, what it names first)."""
        candidate, batch = Capture.read(self.out / name), dict(self.plan.batch)
        for stage in STAGES:
            names = self.plan.names(stage)
            result = judge(stage, self.reference, candidate, batch, names, Tolerances(), self.exact)
            assert result.stage.verdict in (Verdict.PASS, Verdict.FAIL), result.stage.message
            if result.stage.verdict is Verdict.FAIL:
                return stage, result.findings[0].tensor
        return None, None

    def guilty(self, name: str, stage: str) -> list[str]:
        """Modules that are named guilty after a failing F or G, of like ones the first."""
        mask, folder = self.plan.batch["attention_mask"], self.out / name
        if stage == "F":
            sides = Capture.read(folder), Capture.read(folder / plants.FORCED)
            found = explain(Evidence(self.reference, *sides, mask, Tolerances(), self.exact), lambda place: ())
        else:
            reference = Capture.read(self.out / plants.BACKWARD)
            free, forced = (Capture.read(folder / plants.BACKWARD / kind) for kind in (FREE, FORCED))
            proof = BackwardEvidence(reference, free, forced, Tolerances(), self.exact_backward)
            found = explain_backward(proof, lambda place: ())
        assert {one.code for one in found.findings} <= {"P203", "P204", "P402", "P403"}, found.findings
        return [one.tensor or "" for one in found.findings]


@pytest.fixture(scope="module")
def captures(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Captures]:
    """By module of plants; each is captured once. (pytest makes a parametrized fixture anew for every test.)"""
    return cache(partial(capture, tmp_path_factory))


def capture(tmp_path_factory: pytest.TempPathFactory, name: str) -> Captures:
    """Both sides, with every fault of a module of plants."""
    family, settings = importlib.import_module(name).MODEL
    out = tmp_path_factory.mktemp(name)
    plan = Plan.make(make(family, out / "model", **settings), STAGES, out)
    sides = []
    for dtype, backward in ((plants.REFERENCE, plants.BACKWARD), ("float64", "backward64")):
        job = replace(plan.job, dtype=dtype)
        for side in (command._capture("PyTorch", job, out / dtype, 300), capture_torch(job, out / backward, 300)):
            assert isinstance(side, Capture) and not side.errors, side
            sides.append(side)
    plan.job.write(out / "job.json")
    outcome = run(plants.command(name, out / "job.json", out), 900, plants.environment())
    assert outcome.returncode == 0, outcome.reason()
    return Captures(plan, sides[0], sides[2], sides[3], out)


@pytest.mark.parametrize(("module", "name"), cases("PLANTS"))
def test_a_planted_fault_is_found_and_located(module: str, name: str, captures: Callable[[str], Captures]) -> None:
    plant, found = importlib.import_module(module).PLANTS[name], captures(module)
    assert found.first_bad(name) == (plant.stage, plant.place)
    if plant.stage in EXPLAINED:
        assert found.guilty(name, plant.stage) == list(plant.culprits())


@pytest.mark.parametrize(("module", "name"), cases("BENIGN"))
def test_what_changes_nothing_gives_no_alarm(module: str, name: str, captures: Callable[[str], Captures]) -> None:
    found = captures(module)
    assert found.first_bad(name) == (None, None)
    assert [found.guilty(name, stage) for stage in EXPLAINED] == [[], []]
