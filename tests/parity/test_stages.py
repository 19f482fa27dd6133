"""Verdicts on captures written by hand: what must fail although it looks equal."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from mappings.errors import UserError
from mappings.families import load_family
from migrate.captures.store import Capture, CaptureWriter
from migrate.parity.inputs import make_batch, valid_labels
from migrate.parity.job import Job
from migrate.parity.stages import LOGITS, Judgement, Tolerances, expected_modules, judge
from migrate.report import Verdict

BATCH = make_batch({"vocab_size": 11}, 0)
SHAPE = BATCH["input_ids"].shape
RNG = np.random.default_rng(0)
TENSORS = {name: RNG.standard_normal((40, 50)).astype(np.float32) for name in ("a", "b", "c")}
OUTPUTS = {name: RNG.standard_normal((*SHAPE, 6)).astype(np.float32) for name in ("first", "second", "third")}
LOSS = {"loss": np.array([2.5], np.float32), "valid_labels": np.array([valid_labels(BATCH)], np.float32)}


def capture(out: Path, stage: str, tensors: Mapping[str, np.ndarray]) -> Capture:
    out.mkdir()
    writer = CaptureWriter(out, {"framework": "1"})
    with writer.stage(stage) as stored:
        stored.update(tensors)
    return Capture.read(out)


def compared(
    tmp_path: Path, stage: str, reference: Mapping[str, np.ndarray], candidate: Mapping[str, np.ndarray]
) -> Judgement:
    left, right = capture(tmp_path / "left", stage, reference), capture(tmp_path / "right", stage, candidate)
    expected = list(OUTPUTS if stage == "F" else TENSORS)
    return judge(stage, left, right, BATCH, expected, Tolerances())


def changed(
    tensors: Mapping[str, np.ndarray], name: str, index: tuple[int, ...], factor: float
) -> dict[str, np.ndarray]:
    result = {key: value.copy() for key, value in tensors.items()}
    result[name][index] *= factor
    return result


@pytest.mark.parametrize(("stage", "tensors"), [("W", TENSORS), ("F", OUTPUTS), ("G", TENSORS)])
def test_equal_captures_pass_and_count(stage: str, tensors: Mapping[str, np.ndarray], tmp_path: Path) -> None:
    result = compared(tmp_path, stage, tensors, tensors)
    assert result.stage.verdict is Verdict.PASS
    assert result.stage.compared == 3
    valid = int(BATCH["attention_mask"].sum())
    assert result.stage.figures["elements"] == (3 * valid * 6 if stage == "F" else 3 * 2000)
    assert [row["name"] for row in result.rows] == (list(reversed(tensors)) if stage == "G" else list(tensors))


@pytest.mark.parametrize("stage", ["W", "G"])
def test_a_name_missing_or_added_on_either_side_fails(stage: str, tmp_path: Path) -> None:
    fewer = {name: value for name, value in TENSORS.items() if name != "b"}
    more = {**TENSORS, "d": TENSORS["a"]}
    for index, (left, right) in enumerate([(TENSORS, fewer), (fewer, TENSORS), (fewer, fewer), (more, more)]):
        (tmp_path / str(index)).mkdir()
        result = compared(tmp_path / str(index), stage, left, right)
        assert result.stage.verdict is Verdict.FAIL
        assert {finding.code for finding in result.findings} == {"P002"}


def test_empty_captures_fail(tmp_path: Path) -> None:
    left, right = capture(tmp_path / "left", "W", {}), capture(tmp_path / "right", "W", {})
    assert judge("W", left, right, BATCH, [], Tolerances()).stage.verdict is Verdict.FAIL
    assert judge("W", left, right, BATCH, ["a"], Tolerances()).stage.verdict is Verdict.FAIL


def test_one_bit_of_a_weight_fails(tmp_path: Path) -> None:
    other = {name: value.copy() for name, value in TENSORS.items()}
    other["b"][3, 4] = np.nextafter(other["b"][3, 4], np.float32(9))
    result = compared(tmp_path, "W", TENSORS, other)
    (finding,) = result.findings
    assert (finding.code, finding.tensor) == ("P101", "b")
    assert "1 of 2000 elements differ" in finding.message and "[3][4]" in finding.message


def test_all_zero_gradients_fail(tmp_path: Path) -> None:
    zeros = {name: 0 * value for name, value in TENSORS.items()}
    result = compared(tmp_path, "G", zeros, zeros)
    assert result.stage.verdict is Verdict.FAIL
    assert [finding.code for finding in result.findings] == ["P005"]


def test_nan_on_both_sides_fails(tmp_path: Path) -> None:
    both = changed(TENSORS, "c", (1, 1), np.nan)
    result = compared(tmp_path, "G", both, both)
    assert [(finding.code, finding.tensor) for finding in result.findings] == [("P004", "c")]


def test_one_element_cannot_hide_in_a_large_norm(tmp_path: Path) -> None:
    large = {name: RNG.standard_normal((1500, 1500)).astype(np.float32) for name in TENSORS}
    index = (7, 8)
    off = {name: value.copy() for name, value in large.items()}
    off["a"][index] += 0.05  # 0.05 over a norm of 1500 is 3e-5, within 1e-4
    result = compared(tmp_path, "G", large, off)
    assert result.rows[-1]["relative"] < Tolerances().gradients
    assert [(finding.code, finding.tensor) for finding in result.findings] == [("P401", "a")]
    assert "one element" in result.findings[0].message


def test_the_first_divergence_is_named_in_the_order_of_execution(tmp_path: Path) -> None:
    valid = tuple(int(i) for i in np.argwhere(BATCH["attention_mask"])[5])
    off = changed(OUTPUTS, "second", (*valid, 2), 1.5)
    off["third"] = off["third"] * np.float32(1.01)
    result = compared(tmp_path, "F", OUTPUTS, off)
    assert [(finding.code, finding.tensor) for finding in result.findings] == [("P201", "second"), ("P202", "third")]
    assert result.findings[0].message.startswith("first divergence: second")


@pytest.mark.parametrize(
    ("noise", "verdict"),
    [(1e-4, Verdict.PASS), (1e-6, Verdict.FAIL), (np.nan, Verdict.FAIL), (1.0, Verdict.FAIL)],
    ids=["explains it", "too small", "broken", "capped"],
)
def test_measured_rounding_raises_a_bound_within_reason(noise: float, verdict: Verdict, tmp_path: Path) -> None:
    # The candidate is off by 2e-4 (by 0.5 where even the cap of 100 x 1e-5 must refuse); the bound is 1e-5.
    off = np.float32(1 + (0.5 if noise == 1.0 else 2e-4))
    left = capture(tmp_path / "left", "F", OUTPUTS)
    right = capture(tmp_path / "right", "F", {name: value * off for name, value in OUTPUTS.items()})
    wide = {name: value.astype(np.float64) * (1 + noise) for name, value in OUTPUTS.items()}
    exact = capture(tmp_path / "exact", "F", wide)
    assert judge("F", left, right, BATCH, list(OUTPUTS), Tolerances()).stage.verdict is Verdict.FAIL
    assert judge("F", left, right, BATCH, list(OUTPUTS), Tolerances(), exact).stage.verdict is verdict


def test_what_stands_under_padding_does_not_count(tmp_path: Path) -> None:
    padded = tuple(int(i) for i in np.argwhere(BATCH["attention_mask"] == 0)[0])
    assert compared(tmp_path, "F", OUTPUTS, changed(OUTPUTS, "first", (*padded, 0), -3.0)).stage.verdict is Verdict.PASS


def test_gradients_are_named_from_the_loss_backwards(tmp_path: Path) -> None:
    off = {name: value * np.float32(2) if name != "b" else value for name, value in TENSORS.items()}
    result = compared(tmp_path, "G", TENSORS, off)
    assert [finding.tensor for finding in result.findings] == ["c", "a"]
    assert result.findings[0].message.startswith("nearest to the loss: c")


def test_a_gradient_that_never_arrives_is_called_that(tmp_path: Path) -> None:
    off = {**TENSORS, "b": 0 * TENSORS["b"]}
    (finding,) = compared(tmp_path, "G", TENSORS, off).findings
    assert "zero everywhere" in finding.message


def test_the_loss_and_its_divisor_are_compared(tmp_path: Path) -> None:
    (tmp_path / "ok").mkdir()
    assert compared(tmp_path / "ok", "L", LOSS, LOSS).stage.compared == 2
    for name, code in (("loss", "P301"), ("valid_labels", "P302")):
        (tmp_path / name).mkdir()
        result = compared(tmp_path / name, "L", LOSS, changed(LOSS, name, (0,), 1.0 + 1e-2))
        assert result.stage.verdict is Verdict.FAIL
        assert [finding.code for finding in result.findings] == [code]


def test_a_stage_that_raised_says_why(tmp_path: Path) -> None:
    good = capture(tmp_path / "good", "G", TENSORS)
    (tmp_path / "bad").mkdir()
    writer = CaptureWriter(tmp_path / "bad", {})
    with writer.stage("G") as tensors:
        tensors["a"] = TENSORS["a"]
        raise RuntimeError("no kernel for Foo\nstack")
    result = judge("G", good, Capture.read(tmp_path / "bad"), BATCH, list(TENSORS), Tolerances())
    assert result.stage.verdict is Verdict.COULD_NOT_RUN
    assert result.stage.message == "MindSpore: RuntimeError: no kernel for Foo"


def test_a_capture_of_another_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"format": "other"}')
    with pytest.raises(UserError, match="format is not"):
        Capture.read(tmp_path)


def test_a_job_survives_its_file(tmp_path: Path) -> None:
    np.savez(tmp_path / "inputs.npz", **BATCH)
    job = Job(tmp_path, ("W", "G"), tmp_path / "inputs.npz", ("model.norm",))
    job.write(tmp_path / "job.json")
    assert Job.read(tmp_path / "job.json") == job
    assert all((job.batch()[name] == values).all() for name, values in BATCH.items())


def test_expected_modules_come_from_the_family() -> None:
    config = {
        "vocab_size": 11,
        "hidden_size": 8,
        "intermediate_size": 12,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
    }
    modules = expected_modules(load_family("llama"), config)
    # embedding, norm, and per layer: itself, attention with 4, mlp with 3, two norms
    assert len(modules) == 2 + 2 * (1 + 5 + 4 + 2)
    assert {"model.embed_tokens", "model.layers.1", "model.layers.0.mlp", "model.norm"} <= set(modules)
    assert not {"model", "model.layers", "lm_head", LOGITS} & set(modules)
