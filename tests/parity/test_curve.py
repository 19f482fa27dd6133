"""Comparison of training curves."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from mappings.errors import UserError
from migrate.parity.command import curve
from migrate.parity.curve import tolerance
from migrate.report import Report, Verdict, band

LOSSES = [5.0, 4.0, 3.5, 3.25, 3.0]


def write(path: Path, losses: list[float], first: int = 1) -> Path:
    records = [{"step": step, "loss": loss, "lr": 0.1} for step, loss in enumerate(losses, first)]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def run(tmp_path: Path, left: list[float], right: list[float], **options: object) -> Report:
    settings = {"first_rtol": 1e-6, "last_rtol": 1e-4, **options}
    return curve(write(tmp_path / "left", left), write(tmp_path / "right", right), **settings)  # type: ignore[arg-type]


def test_equal_curves_pass(tmp_path: Path) -> None:
    report = run(tmp_path, LOSSES, LOSSES)
    assert report.exit_code == 0
    assert report.stages[0].compared == 5
    assert [c.name for c in report.curves] == ["reference", "candidate"]
    assert report.curves[0].y == LOSSES and report.curves[0].x == [1, 2, 3, 4, 5]


def test_two_zero_tolerances_ask_for_equality(tmp_path: Path) -> None:
    assert run(tmp_path, LOSSES, LOSSES, first_rtol=0.0, last_rtol=0.0).exit_code == 0
    other = [*LOSSES[:4], math.nextafter(3.0, 4.0)]
    assert run(tmp_path, LOSSES, other, first_rtol=0.0, last_rtol=0.0).exit_code == 1


def test_curves_are_named_after_their_directories(tmp_path: Path) -> None:
    for name in ("one", "tp2"):
        (tmp_path / name).mkdir()
        write(tmp_path / name / "metrics.jsonl", LOSSES)
    paths = [tmp_path / name / "metrics.jsonl" for name in ("one", "tp2")]
    assert [c.name for c in curve(*paths, first_rtol=1e-6, last_rtol=1e-4).curves] == ["one", "tp2"]


def test_the_tolerance_grows_geometrically() -> None:
    limits = [tolerance(index, 5, 1e-6, 1e-2) for index in range(5)]
    assert limits == pytest.approx([1e-6, 1e-5, 1e-4, 1e-3, 1e-2])
    assert tolerance(0, 1, 1e-6, 1e-2) == 1e-6


@pytest.mark.parametrize("index", range(5))
def test_just_inside_passes_and_just_outside_fails(index: int, tmp_path: Path) -> None:
    limit = tolerance(index, 5, 1e-6, 1e-4)
    for factor, code in ((0.99, 0), (1.01, 1)):
        other = LOSSES.copy()
        other[index] *= 1 + factor * limit
        report = run(tmp_path, LOSSES, other)
        assert report.exit_code == code
        if code:
            assert f"step {index + 1}" in report.findings[0].message
            assert report.findings[0].code == "P501"


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_values_that_are_not_finite_equal_nothing(value: float, tmp_path: Path) -> None:
    broken = [5.0, 4.0, value, 3.25, 3.0]
    report = run(tmp_path, broken, broken)
    assert report.exit_code == 1
    assert "step 3" in report.findings[0].message
    json.loads(report.to_json(), parse_constant=lambda text: pytest.fail(f"{text} is no JSON"))


def test_unequal_steps_fail(tmp_path: Path) -> None:
    report = run(tmp_path, LOSSES, LOSSES[:4])
    assert [finding.code for finding in report.findings] == ["P502"]
    assert "only one of them has step 5" in report.stages[0].message
    assert report.stages[0].verdict is Verdict.FAIL


def test_shifted_steps_fail(tmp_path: Path) -> None:
    left, right = write(tmp_path / "left", LOSSES), write(tmp_path / "right", LOSSES, first=0)
    assert curve(left, right, first_rtol=1e-6, last_rtol=1e-4).findings[0].code == "P502"


def test_a_prefix_can_be_asked_for_but_must_be_there(tmp_path: Path) -> None:
    assert run(tmp_path, LOSSES, LOSSES[:4], steps=4).exit_code == 0
    assert run(tmp_path, LOSSES[:3], LOSSES[:3], steps=4).exit_code == 1
    longer = [*LOSSES[:4], 99.0]
    assert run(tmp_path, LOSSES, longer, steps=4).exit_code == 0


def test_records_of_another_kind_are_counted(tmp_path: Path) -> None:
    left, right = write(tmp_path / "left", LOSSES), write(tmp_path / "right", LOSSES)
    right.write_text(right.read_text() + '{"step": 5, "eval_loss": 3.3}\n\n')
    report = curve(left, right, first_rtol=1e-6, last_rtol=1e-4)
    assert report.exit_code == 0
    assert report.facts["candidate_records_without_key"] == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no record has 'loss'"),
        ('{"step": 1, "loss": 2.0}\n{"step": 1, "loss": 2.0}\n', "step 1 is there twice"),
        ('{"step": 1, "loss": "2"}\n', "must be numbers"),
        ('{"step": 1.5, "loss": 2.0}\n', "must be numbers"),
        ('{"step": 1, "loss": true}\n', "must be numbers"),
        ("[1]\n", "must be a JSON object"),
        ('{"step": 1', "not valid JSON"),
    ],
)
def test_a_malformed_file_is_a_user_error(text: str, message: str, tmp_path: Path) -> None:
    good = write(tmp_path / "good", LOSSES)
    bad = tmp_path / "bad"
    bad.write_text(text)
    with pytest.raises(UserError, match=message):
        curve(good, bad, first_rtol=1e-6, last_rtol=1e-4)


def test_bad_options_are_user_errors(tmp_path: Path) -> None:
    good = write(tmp_path / "good", LOSSES)
    with pytest.raises(UserError, match="tolerances"):
        curve(good, good, first_rtol=0.0, last_rtol=1e-4)
    with pytest.raises(UserError, match="cannot be read"):
        curve(good, tmp_path / "nothing", first_rtol=1e-6, last_rtol=1e-4)


def test_names_and_group_reach_the_plot(tmp_path: Path) -> None:
    report = run(tmp_path, LOSSES, LOSSES, names=("PyTorch", "tp=2"), group="loss of qwen2")
    assert [(c.name, c.group) for c in report.curves] == [("PyTorch", "loss of qwen2"), ("tp=2", "loss of qwen2")]


def test_the_band_is_a_multiple_of_the_largest_distance_so_far(tmp_path: Path) -> None:
    noise = write(tmp_path / "noise", [5.0, 4.0 * (1 + 1e-3), 3.5, 3.25, 3.0])
    limits = band.limits(*({1: 5.0, 2: 4.0, 3: 3.5}, [{1: 5.0, 2: 4.004, 3: 3.5}], [1, 2, 3]), floor=1e-6)
    assert limits == pytest.approx([1e-6, 3e-3, 3e-3])
    inside, outside = [5.0, 4.0, 3.5 * (1 + 2.9e-3), 3.25, 3.0], [5.0, 4.0, 3.5 * (1 + 3.1e-3), 3.25, 3.0]
    assert run(tmp_path, LOSSES, inside, noise=[noise]).exit_code == 0
    assert run(tmp_path, LOSSES, outside, noise=[noise]).exit_code == 1
    early = [5.0 * (1 + 2e-6), *LOSSES[1:]]
    assert run(tmp_path, LOSSES, early, noise=[noise]).exit_code == 1, "before the noise the band is the floor"


@pytest.mark.parametrize("losses", [LOSSES[:4], [5.0, math.nan, 3.5, 3.25, 3.0]])
def test_a_repetition_that_does_not_cover_the_reference_is_refused(losses: list[float], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no repetition of"):
        run(tmp_path, LOSSES, LOSSES, noise=[write(tmp_path / "noise", losses)])
