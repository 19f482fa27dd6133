"""A bound below what the reference differs by from itself is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from test_stages import BATCH, OUTPUTS, capture, compared

from migrate.captures.store import Capture
from migrate.parity.self_noise import SelfNoise
from migrate.parity.stages import Tolerances
from migrate.report import Verdict

NAMES = list(OUTPUTS)


def noise(tmp_path: Path, factor: float) -> SelfNoise:
    again = {name: value.copy() for name, value in OUTPUTS.items()}
    again["second"] = again["second"] * np.float32(1 + factor)
    first, second = capture(tmp_path / "first", "F", OUTPUTS), capture(tmp_path / "second", "F", again)
    return SelfNoise(first, second, BATCH["attention_mask"])


def test_noise_below_the_bound_is_a_figure(tmp_path: Path) -> None:
    own = noise(tmp_path, 1e-6)
    judged = own.check(compared(tmp_path, "F", OUTPUTS, OUTPUTS), "F", NAMES)
    assert judged.stage.verdict is Verdict.PASS
    assert judged.stage.figures["own noise of PyTorch"] == pytest.approx(1e-6, rel=0.1)
    assert own.facts({"F": NAMES})["F activations"]["tensor"] == "second"


def test_a_bound_below_the_noise_could_not_compare(tmp_path: Path) -> None:
    judged = noise(tmp_path, 1e-3).check(compared(tmp_path, "F", OUTPUTS, OUTPUTS), "F", NAMES)
    assert judged.stage.verdict is Verdict.COULD_NOT_RUN
    assert judged.stage.message.startswith("second: PyTorch differs from itself by 0.001")
    assert f"the bound is {Tolerances().activations:.2g}" in judged.stage.message


def test_without_a_second_run_nothing_is_known(tmp_path: Path) -> None:
    first = capture(tmp_path / "first", "F", OUTPUTS)
    own = SelfNoise(first, "PyTorch: killed by SIGKILL", BATCH["attention_mask"])
    judged = own.check(compared(tmp_path, "F", OUTPUTS, OUTPUTS), "F", NAMES)
    assert judged.stage.verdict is Verdict.COULD_NOT_RUN and "SIGKILL" in judged.stage.message
    assert own.facts({"F": NAMES})["not measured"] == "PyTorch: killed by SIGKILL"


def test_weights_have_no_noise(tmp_path: Path) -> None:
    result = compared(tmp_path, "W", OUTPUTS, OUTPUTS)
    own = SelfNoise(Capture(tmp_path, {}, {}, {}), "not there", BATCH["attention_mask"])
    assert own.check(result, "W", NAMES) is result
