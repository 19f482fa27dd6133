"""An evaluation gives the same loss, tokens and hits in every layout, and the same samples where there are any."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness import launch

from tests.ms_models.train.run_helpers import write_model

pytestmark = [pytest.mark.multi_process, pytest.mark.grid, pytest.mark.timeout(400)]
WORKER = Path(__file__).with_name("evaluation_worker.py")
ROOT = Path(__file__).parents[2]
TOLERANCE = 1e-6  # fp32 numbers in another order; measured at most 6.5e-8


def test_every_layout_evaluates_as_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    result = launch(WORKER, 2, tmp_path / "run", str(write_model(tmp_path / "model")))
    result.check(2)
    for found in result.ranks.values():
        one, fault = found.pop("one"), found.pop("fault")
        assert 0 < one["hits"] < one["tokens"]
        print({name: abs(other["loss"] / one["loss"] - 1) for name, other in found.items()})
        for name, other in found.items():
            assert (other["tokens"], other["hits"]) == (one["tokens"], one["hits"]), name
            assert other["loss"] == pytest.approx(one["loss"], rel=TOLERANCE), name
            assert not other["made"] or other["made"] == one["made"], name
        assert found["tp2"]["made"] and found["dp2"]["made"]
        assert fault["hits"] != one["hits"], "a rank's own likeliest token is not that of all"
