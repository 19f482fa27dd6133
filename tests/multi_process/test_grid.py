"""Every parallel layout against one process: loss, every gradient, norm, updated weights, loss of the next step.

`make test` runs the launch of two ranks; `make test-grid` those of four and eight, and all families.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from grid_cases import LAUNCHES
from grid_models import config_of, write_model
from grid_worker import write_reference
from harness import Launch, launch

pytestmark = [pytest.mark.multi_process, pytest.mark.timeout(1500)]

WORKER = Path(__file__).with_name("grid_worker.py")
# Self-noise is the order of fp32 additions alone: four micro-batches in place of one batch change the worst gradient
# (biases of keys, which are nearly zero) by 1.7e-6 and weights by 6e-8, cutting over ranks by 4.5e-6 and 2e-7.
TOLERANCES = {"loss": 1e-6, "second": 1e-6, "norm": 1e-6, "gradients": 2e-5, "weights": 1e-6}
FAULT = 100  # a planted fault must exceed a tolerance this many times
# What each planted fault must show in; the other figures may well be right.
FAULTS = {
    "dropped all-reduce": "gradients",
    "doubled scale": "gradients",
    "permuted gradient": "gradients",
    "off-by-one micro-batch": "gradients",
    "tied weight counted twice": "norm",
}
PARTS = [pytest.param(name, marks=[] if name == "pair" else pytest.mark.grid) for name in LAUNCHES]


@pytest.fixture(scope="module", params=PARTS)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Launch]:
    name = request.param
    ranks, cases = LAUNCHES[name]
    folder = tmp_path_factory.mktemp(name)
    for model in dict.fromkeys(case.model for case in cases):
        write_model(folder / "models" / model, config_of(model))
        write_reference(folder / "models" / model)
    result = launch(WORKER, ranks, folder / "run", name, str(folder / "models"), timeout=1200)
    result.check(ranks)
    for case in cases:
        worst = {key: max(result.ranks[rank]["cases"][case.name][key] for rank in range(ranks)) for key in TOLERANCES}
        print(f"{name} {case.name}:", ", ".join(f"{key} {value:.1e}" for key, value in worst.items()))
    return name, result


def test_every_layout_equals_one_process(run: tuple[str, Launch]) -> None:
    name, result = run
    ranks, cases = LAUNCHES[name]
    wrong = []
    for rank in range(ranks):
        assert list(result.ranks[rank]["cases"]) == [case.name for case in cases]
        for case, found in result.ranks[rank]["cases"].items():
            assert found["tokens"] == 0 and found["parameters"] > 10, (rank, case, found)
            wrong += [(rank, case, key, found) for key, limit in TOLERANCES.items() if not found[key] < limit]
    assert not wrong, "\n".join(map(str, wrong))


def test_planted_faults_are_seen(run: tuple[str, Launch]) -> None:
    name, result = run
    if name != "pair":
        assert all("faults" not in report for report in result.ranks.values())
        return
    found = [report["faults"] for report in result.ranks.values()]
    assert all(set(faults) == set(FAULTS) for faults in found)
    for fault, figure in FAULTS.items():
        # A rank that the fault does not reach may be right.
        assert max(faults[fault][figure] for faults in found) > FAULT * TOLERANCES[figure], (fault, found)
