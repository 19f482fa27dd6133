"""Stage C: both sides train for real; a fault that grows over the steps leaves PyTorch's own noise."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from parity_models import make

from migrate.captures.store import Capture, CaptureWriter
from migrate.parity.layouts.request import Request
from migrate.parity.plan import Plan
from migrate.parity.tolerances import Tolerances
from migrate.parity.training import stage
from migrate.parity.training.run import AGAIN, LOSS, NORM, STAGE, read_batches, settings, write_batches
from migrate.report import Report, Verdict

STEPS = 10
FAULTS = {
    "no fault": "pass",
    "warmup": "from ms_models.train import schedule as m; f = m.learning_rate; "
    "m.learning_rate = lambda n, *rest: f(max(1, n - 1), *rest)",
    "beta2": "from dataclasses import replace; from ms_models.train import optimizer as m; f = m.AdamW.__init__; "
    "m.AdamW.__init__ = lambda self, sharding, config, *rest: f("
    "self, sharding, replace(config, betas=(config.betas[0], 0.999)), *rest)",
}


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    folder = tmp_path_factory.mktemp("training")
    return Plan.make(make("qwen2", folder / "model", tie_word_embeddings=True), ("F",), folder)


def judged(plan: Plan, folder: Path) -> Report:
    report = Report("parity model", "m")
    training = stage.Training(plan, plan.job.directory, folder, STEPS, 0, Tolerances(), 300)
    training.judge(report)
    return report


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_the_optimizer_leaves_the_band(
    name: str, plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "planted_training.py").write_text(
        "import sys\nfrom pathlib import Path\nfrom migrate.parity.training import mindspore_side\n"
        + FAULTS[name].replace("; ", "\n")
        + "\nmindspore_side.main(*map(Path, sys.argv[1:4]))\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setitem(stage.SIDES, "MindSpore", "planted_training")
    report = judged(plan, tmp_path / "out")
    assert [one.compared for one in report.stages] == [STEPS, STEPS], report.stages
    is_right = name == "no fault"
    assert report.stages[0].verdict is (Verdict.PASS if is_right else Verdict.FAIL)
    assert {one.code for one in report.findings} == (set() if is_right else {"P501"})
    assert [curve.name for curve in report.curves[:3]] == ["PyTorch", "MindSpore", "PyTorch row by row"]


def curves(loss: list[float], again: list[float] | None = None) -> dict[str, np.ndarray]:
    values = {LOSS: np.array(loss), NORM: np.array(loss) * 2}
    more = {} if again is None else {LOSS + AGAIN: np.array(again), NORM + AGAIN: np.array(again) * 2}
    return {**values, **more}


def verdicts(plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *sides: dict[str, np.ndarray]) -> Report:
    """Of curves that programs only copy."""
    for side, tensors in zip(("PyTorch", "MindSpore"), sides, strict=True):
        source = tmp_path / f"{side}_curves"
        source.mkdir()
        with CaptureWriter(source, {}).stage(STAGE) as stored:
            stored.update(tensors)
        program = tmp_path / f"copy_{side}.py"
        program.write_text(f"import shutil, sys\nshutil.copytree({str(source)!r}, sys.argv[3], dirs_exist_ok=True)\n")
        monkeypatch.setitem(stage.SIDES, side, program.stem)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return judged(plan, tmp_path / "out")


RIGHT = [5.0 - 0.1 * step for step in range(STEPS)]


@pytest.mark.parametrize(
    ("own", "off", "verdict"),
    [(0.0, 1e-6, Verdict.PASS), (0.0, 1e-5, Verdict.FAIL), (1e-5, 2e-5, Verdict.PASS), (1e-5, 4e-5, Verdict.FAIL)],
    ids=["within the bound of the loss", "beyond it", "within three times the noise", "beyond that"],
)
def test_the_band_is_pytorchs_own_noise(
    own: float, off: float, verdict: Verdict, plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    again = [value * (1 + own) for value in RIGHT]
    report = verdicts(plan, tmp_path, monkeypatch, curves(RIGHT, again), curves([v * (1 + off) for v in RIGHT]))
    assert [one.name for one in report.stages] == ["C curve, loss", "C curve, gradient norm"]
    assert report.stages[0].verdict is verdict
    assert report.stages[1].verdict is Verdict.PASS  # the bound of gradients is wider


def test_a_reference_that_diverges_judges_nothing(plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = [*RIGHT[:-1], np.nan]
    report = verdicts(plan, tmp_path, monkeypatch, curves(broken, broken), curves(broken))
    assert {one.verdict for one in report.stages} == {Verdict.COULD_NOT_RUN}
    assert report.exit_code == 2
    json.loads(report.to_json(), parse_constant=lambda text: pytest.fail(f"{text} is no JSON"))


def test_a_side_that_fails_is_named(plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(stage.SIDES, "PyTorch", "no_such_program")
    report = judged(plan, tmp_path / "out")
    assert report.exit_code == 2
    assert "PyTorch: " in report.stages[0].message and "no_such_program" in report.stages[0].message


def test_every_step_has_a_batch_of_its_own(tmp_path: Path) -> None:
    write_batches(tmp_path / "b.npz", {"vocab_size": 50, "max_position_embeddings": 64}, "causal", 12, seed=3)
    batches = read_batches(tmp_path / "b.npz")
    assert len(batches) == 12 == len({batch["input_ids"].tobytes() for batch in batches})
    assert (settings(12).warmup_steps, settings(3).warmup_steps, settings(12).run_steps) == (2, 1, 12)


def ranks(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: list[dict[str, np.ndarray] | str]
) -> Report:
    """Stage C of a layout whose ranks have these curves, or reasons why they have none."""
    captures: list[Capture | str] = []
    for number, tensors in enumerate(found):
        if not isinstance(tensors, str):
            folder = tmp_path / f"curves{number}"
            folder.mkdir()
            with CaptureWriter(folder, {}).stage(STAGE) as stored:
                stored.update(tensors)
        captures.append(tensors if isinstance(tensors, str) else Capture.read(folder))
    own = stage.Training(plan, plan.job.directory, tmp_path / "out", STEPS, 0, Tolerances(), 300)
    own.__dict__["reference"] = captures[0]
    monkeypatch.setattr(stage, "capture_ranks", lambda *_: captures[1:])
    report = Report("parity model", "m")
    own.judge(report, Request.read("dp=2"))
    return report


def test_ranks_tell_the_same_curve(plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    off = curves(RIGHT)
    off[LOSS][3] = np.nextafter(off[LOSS][3], 9)
    report = ranks(plan, tmp_path, monkeypatch, [curves(RIGHT, RIGHT), curves(RIGHT), off])
    assert [one.verdict for one in report.stages] == [Verdict.FAIL, Verdict.PASS]
    assert [one.code for one in report.findings] == ["P701"]
    assert "rank 1 has another loss than rank 0 at step 4" in report.findings[0].message


def test_a_rank_without_a_curve_is_named(plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = ranks(plan, tmp_path, monkeypatch, [curves(RIGHT, RIGHT), curves(RIGHT), "no kernel for Foo"])
    assert report.exit_code == 2
    assert report.stages[0].message == "MindSpore, rank 1 of 2: no kernel for Foo"


STALE = """
from mindspore import Tensor
from ms_models.parallel.parameter_sharding import ParameterSharding as m

take = m.take


def stale(self, parameters):
    if not hasattr(self, "first"):
        self.first = [Tensor(one.asnumpy().copy()) for one in self.kept]
    now, self.kept = self.kept, self.first
    take(self, parameters)
    self.kept = now


m.take = stale
"""


@pytest.mark.grid
@pytest.mark.multi_process
@pytest.mark.parametrize("fault", ["", STALE], ids=["no fault", "weights of before the first update are gathered"])
def test_ranks_that_train(fault: str, plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "planted_ranks.py").write_text(
        f"import sys\nfrom pathlib import Path\nfrom migrate.parity.training import rank\n{fault}\n"
        "rank.main(*map(Path, sys.argv[1:4]), sys.argv[4])\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(stage, "RANK", "planted_ranks")
    request = Request.read("dp=2,zero=3")
    report = Report("parity model", "m")
    stage.Training(plan, plan.job.directory, tmp_path / "out", 5, 0, Tolerances(), 300, request).judge(report, request)
    verdict = Verdict.FAIL if fault else Verdict.PASS
    assert [(one.verdict, one.compared) for one in report.stages] == [(verdict, 5), (verdict, 5)], report.stages
    if fault:
        assert "4 of 5 steps differ, the first is step 2" in report.findings[0].message
