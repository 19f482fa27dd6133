"""Stage U: the runner's optimizer against `torch.optim.AdamW`, and every planted fault of an optimizer found."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import plants
import plants_updates
import pytest
from parity_models import make

from mappings.families import load_family
from migrate.captures.store import Capture
from migrate.parity import command
from migrate.parity.inputs import make_batch
from migrate.parity.job import Job
from migrate.parity.stages import Tolerances, judge
from migrate.parity.updates import NORM, RATE, UPDATES, changed, gradient, names
from migrate.processes import run
from migrate.report import Verdict


@pytest.fixture(scope="module")
def captures(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], Capture, Path]:
    """(expected names, the PyTorch side, a folder of the MindSpore side per plant)."""
    out = tmp_path_factory.mktemp("updates")
    model = make("qwen2", out / "model", tie_word_embeddings=True)
    config = json.loads((model / "config.json").read_text())
    np.savez(out / "inputs.npz", **make_batch(config, 0))
    job = Job(model, ("U",), out / "inputs.npz", ())
    reference = command._capture("PyTorch", job, out / "reference", 120)
    assert isinstance(reference, Capture), reference
    job.write(out / "job.json")
    outcome = run(plants.command("plants_updates", out / "job.json", out), 300, plants.environment())
    assert outcome.returncode == 0, outcome.reason()
    parameters = [parameter.name for parameter in load_family("qwen2").parameters(config)]
    return names(parameters), reference, out


def first_wrong(name: str, captures: tuple[list[str], Capture, Path]) -> str | None:
    expected, reference, out = captures
    result = judge("U", reference, Capture.read(out / name), {}, expected, Tolerances())
    assert result.stage.verdict in (Verdict.PASS, Verdict.FAIL), result.stage.message
    assert result.stage.compared == len(expected)
    return result.findings[0].tensor if result.findings else None


@pytest.mark.parametrize("name", plants_updates.BENIGN)
def test_the_same_optimizer_passes(name: str, captures: tuple[list[str], Capture, Path]) -> None:
    assert first_wrong(name, captures) is None


@pytest.mark.parametrize("name", plants_updates.PLANTS)
def test_a_planted_fault_is_found_and_located(name: str, captures: tuple[list[str], Capture, Path]) -> None:
    assert first_wrong(name, captures) == plants_updates.PLANTS[name].place


def test_injected_gradients_meet_what_they_are_for(captures: tuple[list[str], Capture, Path]) -> None:
    _, reference, _ = captures
    with reference.reader("U") as read:
        norms = [float(read(NORM.format(step))[0]) for step in (1, 2)]
        rates = [float(read(RATE.format(step))[0]) for step in (1, 2)]
    assert min(norms) > 2 * UPDATES.clip_norm, "clipping is active"
    assert rates == pytest.approx([UPDATES.lr / 4, UPDATES.lr / 2]), "within the warmup"
    sizes = np.abs(gradient("a", (1000,), 1, 0))
    assert np.quantile(sizes, 0.05) < 1e-3 < 1e-1 < np.quantile(sizes, 0.95)
    assert not np.array_equal(gradient("a", (9,), 1, 0), gradient("a", (9,), 1, 1))
    assert changed("w", 2) == "w in step 2"
