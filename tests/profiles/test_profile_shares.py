"""Shares of a step from recordings: of the CPU's format, and of the accelerator's in files of our own making."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from mappings.errors import UserError
from migrate.cli import main
from migrate.profiles.judging import profile
from migrate.profiles.reading import read_recordings

COLUMNS = (
    "Step,Computing,Communication(Not Overlapped),Overlapped,Communication,Free,Stage,Bubble,"
    "Communication(Not Overlapped and Exclude Receive),Preparing"
)


def run_of(directory: Path, data_wait: float = 0.01, tokens_per_s: float = 100.0, **layout: int) -> Path:
    """A run of six steps of 2 s, of which 3 to 5 are recorded."""
    directory.mkdir(parents=True)
    config: dict[str, Any] = {"profile": {"steps": [3, 5]}, "layout": layout, "train": {"accumulation": 4}}
    (directory / "config.yaml").write_text(yaml.safe_dump(config))
    record = {"loss": 1.0, "step_time_s": 2.0, "data_wait": data_wait, "tokens_per_s": tokens_per_s}
    (directory / "metrics.jsonl").write_text("".join(json.dumps({"step": n, **record}) + "\n" for n in range(1, 7)))
    return directory


def cpu(run: Path, rank: int, lines: list[str]) -> None:
    folder = run / "profile" / f"rank_{rank:05d}" / "vm_1_2_ascend_ms" / "FRAMEWORK"
    folder.mkdir(parents=True)
    (folder / "cpu_op_execute_timestamp_0.txt").write_text("\n".join(lines) + "\n")


def device(run: Path, rank: int, rows: list[str], columns: str = COLUMNS) -> None:
    folder = run / "profile" / f"rank_{rank:05d}" / "vm_1_2_ascend_ms" / "ASCEND_PROFILER_OUTPUT"
    folder.mkdir(parents=True)
    (folder / "step_trace_time.csv").write_text("\n".join([columns, *rows]) + "\n")


def calls(name: str, *spans: tuple[float, float]) -> str:
    """A line of the recording; spans are (start, length) in seconds."""
    texts = [f"{round(start * 1e9)},{length * 1e3},0" for start, length in spans]
    return f"{name};HostCpuOps;{' '.join(texts)} "


def test_operators_that_overlap_are_counted_once(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", dp=2)
    # 3.5 s of computing, of which 0.5 s in two threads at once; a sum of 2 s, half of it hidden behind computing.
    cpu(run, 0, [
        calls("Default/MatMul-op0", (10.0, 1.5), (12.0, 0.5)), calls("Default/layer/MatMul-op12", (11.0, 2.0)),
        calls("Default/AllReduce-op3", (12.0, 2.0)),
    ])  # fmt: skip
    (found,) = read_recordings(run)
    assert (found.busy_s, found.communication_s, found.compute_s) == pytest.approx((4.0, 1.0, 3.0))
    assert [(kind, count) for kind, count, _ in found.operators] == [("MatMul", 3), ("AllReduce", 1)]
    report = profile(run)
    shares = report.facts["shares"]
    # Of 6 s: 3 computing, 1 visible sum, 0.06 data, the rest nothing.
    assert shares == {"computation": 0.5, "communication": 0.1667, "data": 0.01, "host": 0.3233}
    (finding,) = report.findings
    assert (finding.code, finding.fix) == ("P104", "Use larger micro-batches or longer sequences.")
    assert report.exit_code == 0, "a note is no reason to fail"
    assert "1 rank recorded" in report.stages[0].message
    config = yaml.safe_load((run / "config.yaml").read_text())
    config["train"]["jit"] = False
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    assert profile(run).findings[0].fix.startswith("Compile the step (train.jit: true), use larger")


def test_the_rank_that_waits_least_tells_the_traffic(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", dp=2)
    cpu(run, 0, [calls("MatMul-op0", (0, 1.0)), calls("AllReduce-op0", (1.0, 5.0))])
    cpu(run, 1, [calls("MatMul-op0", (0, 5.4)), calls("AllReduce-op0", (5.4, 0.6))])
    report = profile(run)
    assert report.facts["shares"]["communication"] == 0.1
    assert report.facts["shares"]["computation"] == 0.9
    assert report.findings == []


@pytest.mark.parametrize(("seconds", "severity"), [(1.0, None), (1.5, "note"), (2.4, "warning")])
def test_advice_follows_the_share_of_communication(tmp_path: Path, seconds: float, severity: str | None) -> None:
    run = run_of(tmp_path / "run", dp=2)
    cpu(run, 0, [calls("MatMul-op0", (0, 6 - seconds)), calls("AllReduce-op0", (6 - seconds, seconds))])
    assert [finding.severity.value for finding in profile(run).findings] == ([severity] if severity else [])


def test_columns_of_the_accelerator_are_added_up(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", pp=2)
    row = "{},1200000,500000,100000,600000,250000,0,300000,200000,0"
    device(run, 0, [row.format(step) for step in (3, 4, 5)])
    report = profile(run)
    assert report.facts["shares"] == pytest.approx(
        {"computation": 0.6, "communication": 0.25, "data": 0.01, "host": 0.115, "bubble": 0.15}, abs=1e-9
    )
    assert [finding.code for finding in report.findings] == ["P101"]


def test_the_bubble_follows_from_the_schedule_and_the_measured_stages(tmp_path: Path) -> None:
    even, uneven = (run_of(tmp_path / name, pp=2, vpp=1) for name in ("even", "uneven"))
    for run, second in ((even, 4.0), (uneven, 2.0)):
        cpu(run, 0, [calls("MatMul-op0", (0, 4.0))])
        cpu(run, 1, [calls("MatMul-op0", (0, second))])
    # Four micro-batches over two equal stages: (pp - 1) / (m + pp - 1), as every transfer is waited for.
    assert profile(even).facts["shares"]["bubble"] == pytest.approx(1 / 5, abs=0.05)
    assert profile(uneven).facts["shares"]["bubble"] > profile(even).facts["shares"]["bubble"] + 0.1


def test_efficiency_compares_ranks_not_runs(tmp_path: Path) -> None:
    one, four = run_of(tmp_path / "one", dp=1), run_of(tmp_path / "four", dp=4, tokens_per_s=200.0)
    cpu(four, 0, [calls("MatMul-op0", (0, 6.0))])
    report = profile(four, one)
    assert report.facts["shares"]["scaling efficiency"] == 0.5
    assert [finding.code for finding in report.findings] == ["P105"]


def test_slow_data_is_named(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", data_wait=0.3)
    cpu(run, 0, [calls("MatMul-op0", (0, 4.0))])
    assert [finding.code for finding in profile(run).findings] == ["P102"]


def test_what_cannot_be_read_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_of(tmp_path / "run")
    assert main(["profile", str(run)]) == 2
    assert "train with --profile steps=FIRST:LAST" in capsys.readouterr().err
    cpu(run, 0, ["Default/MatMul-op0;HostCpuOps;12,x,0 "])
    with pytest.raises(UserError, match=r"timestamp_0.txt:1: not a line of operator times"):
        profile(run)
    other = run_of(tmp_path / "other")
    device(other, 0, ["3,1,2"], columns="Step,Computing,Transport")
    with pytest.raises(UserError, match="made by another version"):
        profile(other)
