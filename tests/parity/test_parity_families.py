"""Every family of ms_models against transformers, through all stages, in three states of the weights.

Three families run in every test run, all of them and both further states with
`pytest -m slow -s tests/parity/test_parity_families.py`, which prints the figures of docs/parity.md.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import parity_models
import pytest

from mappings.families import load_family
from migrate.captures.store import Capture
from migrate.parity import command
from migrate.parity.judgement import Judgement
from migrate.parity.perturbed import INIT, STORED, TRAINED, perturbed
from migrate.parity.plan import Plan
from migrate.parity.self_noise import NOISY, SelfNoise
from migrate.parity.stages import ORDER, TITLES, Tolerances, judge
from migrate.processes import run
from migrate.report import Verdict
from ms_models.auto import registered as decoders
from ms_models.auto_masked_lm import registered as encoders

CHEAP = ("gpt2", "qwen3_moe", "bert")
# How each side computes: what is other than the job says.
RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "torch": ("torch", {}),
    "again": ("torch", {"reordered": True, "stages": NOISY}),
    "exact": ("torch", {"dtype": "float64", "stages": ("F", "G")}),
    "mindspore": ("mindspore", {}),
}
# One process for all jobs: importing a framework takes longer than a tiny model.
PROGRAM = """
import json, sys
from pathlib import Path
from migrate.parity.capture_{side} import main
for job, out in json.loads(Path(sys.argv[1]).read_text()):
    main(Path(job), Path(out))
"""


@dataclass(frozen=True)
class Captured:
    """A model and what both sides made of it."""

    plan: Plan
    folder: Path

    def judged(self, stage: str) -> Judgement:
        """As `command.model` judges, with PyTorch in fp64 at hand."""
        read = {name: Capture.read(self.folder / name) for name in RUNS}
        names, batch = self.plan.names(stage), self.plan.batch
        exact = read["exact"] if stage in ("F", "G") else None
        result = judge(stage, read["torch"], read["mindspore"], batch, names, Tolerances(), exact)
        return SelfNoise(read["torch"], read["again"], batch["attention_mask"]).check(result, stage, names)


def capture(families: Iterable[str], state: str, root: Path) -> dict[str, Captured]:
    """Models of all families, captured in one process for each way of computing."""
    found = {}
    for family in families:
        folder = root / family
        model = perturbed(parity_models.make(family, folder / "model"), folder / "moved", state, 0)
        found[family] = Captured(Plan.make(model, ORDER, folder), folder)
    for name, (side, changes) in RUNS.items():
        jobs = []
        for one in found.values():
            out = one.folder / name
            out.mkdir()
            replace(one.plan.job, **changes).write(out / "job.json")
            jobs.append((str(out / "job.json"), str(out)))
        (root / "jobs.json").write_text(json.dumps(jobs))
        outcome = run([sys.executable, "-c", PROGRAM.format(side=side), str(root / "jobs.json")], 900)
        assert outcome.returncode == 0, outcome.stderr[-3000:]
    return found


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Captured]:
    """The cheap families as they are stored."""
    return capture(CHEAP, STORED, tmp_path_factory.mktemp("families"))


@pytest.mark.parametrize("family", CHEAP)
@pytest.mark.parametrize("stage", ORDER)
def test_a_cheap_family_passes(family: str, stage: str, captured: dict[str, Captured]) -> None:
    result = captured[family].judged(stage)
    assert result.stage.verdict is Verdict.PASS, result.stage.message
    assert result.stage.compared == (len(captured[family].plan.names(stage)) or 2)


def test_every_registered_family_has_a_model() -> None:
    families = {load_family(name.replace("-", "_")).name for name in (*decoders(), *encoders()) if name != "kimi_k2"}
    assert families == set(parity_models.CONFIGS)


@pytest.fixture(scope="module", params=[STORED, INIT, TRAINED])
def everything(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Captured]:
    """All families in one state."""
    return capture(parity_models.CONFIGS, request.param, tmp_path_factory.mktemp(request.param))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("family", parity_models.CONFIGS)
def test_every_family_passes_every_stage(family: str, everything: dict[str, Captured]) -> None:
    one = everything[family]
    figures = {}
    for stage in ORDER:
        result = one.judged(stage)
        rows = [row for row in result.rows if row["limit"] < 1]  # the others are nothing but rounding
        worst = max(rows, key=lambda row: row["relative"] / (row["limit"] or 1), default={"relative": None, "limit": 0})
        figures[stage] = (worst["relative"], worst["limit"])
        assert result.stage.verdict is Verdict.PASS, result.stage.message
        assert result.stage.compared == (len(one.plan.names(stage)) or 2)
    print(one.folder.parent.name, family, figures)


def test_command_in_the_state_trained(tmp_path: Path) -> None:
    report = command.model(parity_models.make("gpt2", tmp_path / "model"), stages=["L"], state=TRAINED, timeout_s=120)
    assert report.exit_code == 0, report.findings
    assert report.facts["state"] == TRAINED
    assert report.facts["own noise of PyTorch"][TITLES["L"]]["relative"] < Tolerances().loss
    assert report.facts["not compared"]["resid_pdrop 0.1"] == "both sides evaluate, and drop nothing"
