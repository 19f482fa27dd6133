"""`msmigrate logs`."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from migrate.cli import app

RUN = CliRunner()


def line(second: int, who: str, text: str) -> str:
    return f"2026-01-01T00:00:{second:02}.000+00:00 {who:<8} | {text}\n"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "logs").mkdir()
    for node, seconds in enumerate(((1, 5), (3, 7))):
        lines = [line(second, f"rank {node}", f"at {second}") for second in seconds]
        (tmp_path / "logs" / f"merged_node_{node}.log").write_text("".join(lines))
    return tmp_path


@pytest.mark.parametrize(
    ("options", "expected"),
    [([], [1, 3, 5, 7]), (["--rank", "1"], [3, 7]), (["--tail", "2"], [5, 7]), (["--rank", "0", "--tail", "1"], [5])],
)
def test_lines_of_the_ranks_asked_for(run: Path, options: list[str], expected: list[int]) -> None:
    result = RUN.invoke(app, ["logs", str(run), *options])
    assert result.exit_code == 0
    assert [int(text.split("at ")[1]) for text in result.output.splitlines()] == expected


def test_a_directory_without_logs_is_an_error(tmp_path: Path) -> None:
    result = RUN.invoke(app, ["logs", str(tmp_path)])
    assert "holds no merged log" in str(result.exception)
