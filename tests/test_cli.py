"""The command line: fast help, one-line errors with exit 2, tracebacks only on request."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from migrate import cli

COMMANDS = ["doctor", "scan", "code", "rule", "api", "weights", "check", "parity", "data", "train", "report", "export"]


def run(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "migrate.cli", *args], capture_output=True, text=True, timeout=120)


def test_help_names_every_command_and_loads_nothing_heavy() -> None:
    heavy = ("mindspore", "torch", "transformers", "libcst", "numpy", "rich")
    program = (
        "import sys\nfrom migrate import cli\n"
        "code = cli.main(['--help'])\n"
        f"print('LOADED', [name for name in {heavy!r} if name in sys.modules])\n"
        "sys.exit(code)"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0
    assert "LOADED []" in result.stdout  # the reason it answers in well under half a second
    listed = [line.split()[0] for line in result.stdout.split("Commands:")[1].splitlines() if line.startswith("  ")]
    assert set(COMMANDS) <= set(listed)
    assert len(listed) == len(set(listed))


BAD = [
    (["--nope"], "--nope"),
    (["frobnicate"], "frobnicate"),
    (["scan"], "repo"),
    (["scan", "/does/not/exist"], "/does/not/exist"),
    (["code", "/does/not/exist", "-o", "x"], "/does/not/exist"),
    (["code", "."], "--out"),
    (["code", ".", "-o", "x", "--colour"], "--colour"),
    (["weights", "convert", "/does/not/exist", "-o", "x"], "/does/not/exist"),
    (["weights", "convert", ".", "-o", "x", "--tp", "0"], "--tp"),
    (["weights", "convert", ".", "-o", "x", "--tp", "two"], "--tp"),
    (["weights", "export", "/does/not/exist", "-o", "x"], "/does/not/exist"),
    (["weights", "verify", "/does/not/exist"], "/does/not/exist"),
    (["weights", "inspect", "/does/not/exist"], "/does/not/exist"),
    (["check", "/does/not/exist"], "/does/not/exist"),
    (["check", ".", "--run", "/does/not/exist.yaml"], "/does/not/exist.yaml"),
    (["parity", "model", "/does/not/exist"], "/does/not/exist"),
    (["parity", "curve", "/does/not/exist", "/nor/this"], "/does/not/exist"),
    (["data", "stdlib", "--tokenizer", "/does/not/exist", "-o", "x"], "/does/not/exist"),
    (["train", "/does/not/exist.yaml"], "/does/not/exist.yaml"),
    (["report", "/does/not/exist.json", "-o", "x.html"], "/does/not/exist.json"),
]


@pytest.mark.parametrize(("args", "named"), BAD, ids=[" ".join(args) for args, _ in BAD])
def test_bad_input_is_one_line_and_exit_2(
    args: list[str], named: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(args) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("msmigrate: error: ")
    assert captured.err.count("\n") == 1
    assert named in captured.err


@pytest.mark.parametrize(
    "args",
    [
        ["scan", "EMPTY"],
        ["code", "EMPTY", "-o", "out"],
        ["weights", "convert", "EMPTY", "-o", "out"],
        ["weights", "export", "EMPTY", "-o", "out"],
        ["weights", "verify", "EMPTY"],
        ["weights", "inspect", "EMPTY"],
        ["check", "EMPTY"],
        ["parity", "model", "EMPTY"],
        ["data", "EMPTY", "--tokenizer", "EMPTY", "-o", "out"],
        ["report", "EMPTY", "-o", "out.html"],
    ],
    ids=" ".join,
)
def test_a_directory_of_the_wrong_kind_is_exit_2_and_leaves_nothing(
    args: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "EMPTY").mkdir()
    assert cli.main(args) == 2
    error = capsys.readouterr().err
    assert error.startswith("msmigrate: error: ") and error.count("\n") == 1 and "EMPTY" in error
    assert "internal error" not in error
    assert [path.name for path in tmp_path.iterdir()] == ["EMPTY"]


@pytest.mark.parametrize("position", [0, 2])
def test_verbose_shows_the_traceback_wherever_it_stands(position: int) -> None:
    args = ["check", "."]
    args.insert(position, "-v")
    result = run(*args)
    assert result.returncode == 2
    assert "Traceback" in result.stderr
    assert "Traceback" not in run("check", ".").stderr


def test_a_defect_is_reported_and_not_hidden(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: object, **kwargs: object) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr("migrate.check.command.check", broken)
    assert cli.main(["check", str(tmp_path)]) == 2
    assert "internal error (RuntimeError: planted)" in capsys.readouterr().err


def test_json_is_all_that_standard_output_holds() -> None:
    result = run("doctor", "--json")
    report = json.loads(result.stdout)
    assert report["command"] == "doctor"
    assert report["exit_code"] == result.returncode
