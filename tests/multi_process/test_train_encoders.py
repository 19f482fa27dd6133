"""Masked language models trained by several processes: layouts agree with one process, resumed runs are exact.

The model drops values in training, so that ranks have to drop the same ones; half of the tokens are hidden. On one
process the steps are those of transformers, see tests/ms_models/train/test_run_encoders.py.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ms_models.train.launch import starting
from ms_models.train.services.metrics_file import read_metrics
from tests.ms_models.train.encoder_helpers import write_encoder, write_rows, write_run
from tests.ms_models.train.run_helpers import read_tensors

pytestmark = [pytest.mark.multi_process, pytest.mark.grid, pytest.mark.timeout(500)]

TOLERANCE = 1e-6  # as in test_train.py: the same fp32 numbers in another order
FAULT = 100
LAYOUTS: dict[str, dict[str, dict[str, Any]]] = {
    "one": {"layout": {}, "train": {"accumulation": 4}},
    "dp2": {"layout": {"dp": 2, "zero": 2}, "train": {"accumulation": 2}},
    "tp2": {"layout": {"tp": 2}, "train": {"accumulation": 4}},
}
FIGURES = ("loss", "grad_norm", "eval_loss", "eval_accuracy")
Curve = list[tuple[int, str, float]]


class Runs:
    """Runs of one model on one data set."""

    def __init__(self, root: Path) -> None:
        self.root, self.done = root, dict[str, Curve]()
        self.data = write_rows(root / "data")
        sizes = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
        self.model = write_encoder(root / "model", "roberta", **sizes)

    def launch(self, layout: str, name: str, *overrides: str, resume: bool = False) -> Curve:
        """The figures of a run, which is done once for each name."""
        if name not in self.done:
            config = write_run(self.root / f"{name}.yaml", self.model, self.data, self.root / name, **LAYOUTS[layout])
            lines: list[str] = []
            assert starting.launch(config, overrides, resume=resume, echo=lines.append) == 0, "\n".join(lines)
            records = read_metrics(self.root / name / "metrics.jsonl")
            self.done[name] = [(r["step"], key, r[key]) for r in records for key in FIGURES if key in r]
        return self.done[name]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("encoders"))


def worst(reference: Curve, other: Curve) -> float:
    assert [one[:2] for one in reference] == [one[:2] for one in other]
    # An accuracy may be zero, and is the same then.
    pairs = [(a[2], b[2]) for a, b in zip(reference, other, strict=True)]
    return max(0.0 if a == b else abs(b - a) / max(abs(a), abs(b)) for a, b in pairs)


@pytest.mark.parametrize("layout", ["dp2", "tp2"])
def test_layouts_agree_with_one_process(layout: str, runs: Runs) -> None:
    one, other = runs.launch("one", "one"), runs.launch(layout, layout)
    assert {key for _, key, _ in one} == set(FIGURES)
    print(f"{layout}: largest relative difference {worst(one, other):.1e}")
    assert worst(one, other) <= TOLERANCE


def test_other_masks_are_another_run(runs: Runs) -> None:
    """Negative control: what the tolerance would say about another choice of hidden tokens."""
    other = runs.launch("one", "less", "masking.rate=0.4")
    assert worst(runs.launch("one", "one"), other) > FAULT * TOLERANCE


@pytest.mark.parametrize("layout", ["dp2", "tp2"])
def test_a_resumed_run_is_the_uninterrupted_one(layout: str, runs: Runs) -> None:
    whole, name = runs.launch(layout, layout), f"{layout}_resumed"
    shutil.copytree(runs.root / layout, runs.root / name)
    shutil.rmtree(runs.root / name / "step_00000006")
    (runs.root / name / "LATEST").write_text("step_00000003\n")
    assert runs.launch(layout, name, resume=True) == whole
    first, second = (runs.root / run / "step_00000006" for run in (layout, name))
    files = sorted(path.name for path in first.glob("*-rank*.safetensors"))
    assert len(files) >= 3
    for file in files:
        before, after = read_tensors(first / file), read_tensors(second / file)
        assert before.keys() == after.keys()
        assert all(np.array_equal(before[key], after[key]) for key in before), file
