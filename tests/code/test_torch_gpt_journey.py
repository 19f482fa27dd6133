"""The journey of `samples/torch_gpt`: convert, train, resume and generate with MindSpore, and compare with PyTorch."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from migrate.code.command import convert, scan
from migrate.report import Severity

SAMPLE = Path(__file__).parents[2] / "samples" / "torch_gpt"
STEPS = 20
# The sample's own model, scaled down: what is compared does not depend on the size.
SMALL = ["model.n_layer=2", "model.n_embd=64", "model.hidden_dim=176", "data.block_size=32", "data.batch_size=2",
         "data.max_bytes=1000000", "train.save_interval=10", "train.eval_batches=2"]  # fmt: skip
FIRST_RTOL, LAST_RTOL = 1e-6, 1e-4
"""fp32: one forward pass differs by the order of sums; 20 updates carry such differences along."""
NORM_RTOL = 1e-3
"""The norm is a root of a sum of squares over all gradients, most of them small differences of larger numbers."""


def python(directory: Path, *arguments: str) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "2", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def train(directory: Path, out: Path, *options: str, steps: int = STEPS) -> list[dict[str, float]]:
    python(directory, "train.py", f"out_dir={out}", *SMALL, f"train.max_steps={steps}", *options)
    return [json.loads(line) for line in (out / "losses.jsonl").read_text(encoding="utf-8").splitlines()]


def differences(reference: list[dict[str, float]], candidate: list[dict[str, float]]) -> list[str]:
    """Steps that differ by more than a tolerance that grows geometrically from the first to the last step."""
    assert [r["step"] for r in reference] == [c["step"] for c in candidate]
    found = []
    for number, (r, c) in enumerate(zip(reference, candidate, strict=True)):
        rtol = FIRST_RTOL * (LAST_RTOL / FIRST_RTOL) ** (number / (STEPS - 1))
        for key, limit in (("loss", rtol), ("grad_norm", NORM_RTOL), ("lr", 0.0)):
            if not abs(c[key] - r[key]) <= limit * abs(r[key]):
                found.append(f"step {r['step']}: {key} {c[key]} instead of {r[key]}")
    return found


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("journey")
    report = convert(SAMPLE, directory / "converted")
    assert report.exit_code == 0, [f"{f.code} {f.file}:{f.line} {f.message}" for f in report.findings]
    return directory


@pytest.fixture(scope="module")
def torch_run(work: Path) -> list[dict[str, float]]:
    return train(SAMPLE, work / "torch", "--save-init", str(work / "init.pt"))


@pytest.fixture(scope="module")
def mindspore_run(work: Path, torch_run: list[dict[str, float]]) -> list[dict[str, float]]:
    return train(work / "converted", work / "mindspore", "--init-from", str(work / "init.pt"))


def test_no_torch_is_left(work: Path) -> None:
    files = [p for p in (work / "converted").rglob("*") if p.suffix in (".py", ".txt") and p.parent.name != "ms_compat"]
    assert len(files) >= 6
    for path in files:
        text = path.read_text(encoding="utf-8")
        # the prose of docstrings and comments may speak of it
        assert not re.search(r"^\s*(import|from)\s+torch|\btorch\.\w", text, re.MULTILINE), path
        assert "TODO(msmigrate" not in text
    requirements = (work / "converted" / "requirements.txt").read_text(encoding="utf-8").split()
    assert "mindspore==2.10.*" in requirements and not any(r.startswith("torch") for r in requirements)


def test_comments_and_untouched_files_survive(work: Path) -> None:
    for path in SAMPLE.glob("*.py"):
        source = path.read_text(encoding="utf-8")
        result = (work / "converted" / path.name).read_text(encoding="utf-8")
        comments = re.findall(r"#.*", source)
        assert sorted(re.findall(r"#.*", result)) == sorted(comments)
        if "torch" not in re.sub(r"#.*|\"\"\".*?\"\"\"", "", source, flags=re.DOTALL):
            assert result == source
    assert (work / "converted" / "config.yaml").read_bytes() == (SAMPLE / "config.yaml").read_bytes()


def test_losses_equal_pytorch(torch_run: list[dict[str, float]], mindspore_run: list[dict[str, float]]) -> None:
    assert len(torch_run) == STEPS
    assert torch_run[-1]["loss"] < torch_run[0]["loss"]
    assert differences(torch_run, mindspore_run) == []


def test_resume_continues_the_run(work: Path, mindspore_run: list[dict[str, float]]) -> None:
    resumed = train(work / "converted", work / "resumed", "--resume", str(work / "mindspore" / "ckpt_10.pt"))
    assert [r["step"] for r in resumed] == list(range(11, STEPS + 1))
    # the same framework, weights, optimizer state and batches: nothing may differ
    assert [r["loss"] for r in resumed] == [r["loss"] for r in mindspore_run[10:]]


def test_greedy_generation_is_the_same(work: Path, torch_run: list[dict[str, float]]) -> None:
    options = [str(work / "torch" / f"ckpt_{STEPS}.pt"), "--prompt", "def main(", "--temperature", "0"]
    expected = python(SAMPLE, "generate.py", *options, "--max-new-tokens", "12")
    assert len(expected) > len("def main(") + 5
    assert python(work / "converted", "generate.py", *options, "--max-new-tokens", "12") == expected
    assert python(work / "converted", "generate.py", *options, "--max-new-tokens", "12", "--no-cache") == expected


def test_pytorch_reads_the_converted_checkpoint(work: Path, mindspore_run: list[dict[str, float]]) -> None:
    resumed = train(SAMPLE, work / "back", "--resume", str(work / "mindspore" / "ckpt_10.pt"), steps=12)
    for ours, theirs in zip(mindspore_run[10:12], resumed, strict=True):
        # lr depends on max_steps, so only the first resumed loss, computed before its update, is comparable
        assert theirs["step"] == ours["step"]
    assert abs(resumed[0]["loss"] - mindspore_run[10]["loss"]) <= 1e-5 * mindspore_run[10]["loss"]


def test_a_planted_change_is_noticed(work: Path, torch_run: list[dict[str, float]]) -> None:
    broken = work / "broken"
    convert(SAMPLE, broken)
    model = broken / "model.py"
    text = model.read_text(encoding="utf-8")
    planted = text.replace("((-x2, x1)", "((x2, -x1)")  # RoPE turns the other way
    assert planted != text
    model.write_text(planted, encoding="utf-8")
    candidate = train(broken, work / "broken_run", "--init-from", str(work / "init.pt"), steps=2)
    assert any("loss" in line for line in differences(torch_run[:2], candidate))


def test_scan_says_the_same_and_writes_nothing(tmp_path: Path) -> None:
    before = sorted(SAMPLE.rglob("*"))
    report = scan(SAMPLE)
    assert sorted(SAMPLE.rglob("*")) == before
    assert report.exit_code == 0
    assert report.facts["torch_names_converted"] == report.facts["torch_names_seen"] > 100
    assert {f.severity for f in report.findings} == {Severity.NOTE}
