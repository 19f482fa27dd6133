"""Every line that touches torch has a status, and the status is the one that its evidence allows."""

from __future__ import annotations

from pathlib import Path

import pytest

from mappings.api import load_table
from mappings.api.evidence import row_key
from migrate.code import command, line_records
from migrate.code.command import convert, scan
from migrate.code.line_records import covered
from migrate.code.verify.modules import Outcome
from migrate.report import FileLines, Line, LineStatus, Report, Verdict, count_lines, line_summary
from migrate.sides.recipes import Recipe

SOURCE = """\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, device):
        x = self.proj(x).to(device)
        x = torch.exp(
            torch.cat([x, x],
                      dim=0)
        )
        z = x + 1
        z.mul_(2)
        return torch.frobnicate(x), torch.vmap(x), f"{x:.3f}"


def other(cache, where):
    y = cache.mean(dim=0)
    return cache.to(where), y + 1
"""


@pytest.fixture
def report(tmp_path: Path) -> Report:
    (tmp_path / "repo").mkdir()
    (tmp_path / "repo" / "net.py").write_text(SOURCE, encoding="utf-8")
    (tmp_path / "repo" / "plain.py").write_text("x = 1\n", encoding="utf-8")
    (tmp_path / "repo" / "old.py").write_text("import torch\nprint 'x'\n", encoding="utf-8")
    return scan(tmp_path / "repo")


def test_lines_of_a_file(report: Report) -> None:
    files = {file.path: {line.number: line for line in file.lines} for file in report.files}
    assert set(files) == {"net.py", "old.py"}
    found = {number: (line.status.value, line.code) for number, line in files["net.py"].items()}
    assert found == {
        1: ("unsupported", "C302"),  # stays for what is left in line 18
        2: ("exact", "C301"),
        5: ("changed and proved", "C102"),
        8: ("changed and proved", "C102"),
        10: ("exact", "C101"),
        11: ("exact", "C101"),
        12: ("exact", "C101"),
        13: ("exact", "C101"),
        17: ("needs review", "C206"),
        18: ("unknown", "M110"),
        22: ("needs review", "M121"),
        23: ("needs review", "C205"),  # what `where` is cannot be told
    }
    assert files["net.py"][8].message == "torch.nn.Linear"
    assert {n: line.code for n, line in files["old.py"].items()} == {1: "M101"}
    assert set(report.rules) == {line.code for file in report.files for line in file.lines} | {
        finding.code for finding in report.findings
    }


def test_counts_are_those_of_the_lines(report: Report) -> None:
    counts = count_lines(report.files)
    assert report.facts["lines_by_status"] == counts and sum(counts.values()) == 13
    assert line_summary(report.files).startswith("13 lines: ")
    assert line_summary([]) == "0 lines"


def test_they_are_written_and_read_back(tmp_path: Path, report: Report) -> None:
    written = convert(tmp_path / "repo", tmp_path / "out")
    read = Report.from_json(tmp_path / "out" / "report.json")
    assert read.files == written.files == report.files and read.rules == written.rules
    notes = (tmp_path / "out" / "MIGRATION.md").read_text(encoding="utf-8")
    assert line_summary(report.files) in notes
    assert "`net.py`: 17 (C206), 22 (M121), 23 (C205)" in notes


def test_a_row_without_evidence_needs_review(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: the status follows the evidence, not the row's own claim."""
    path = tmp_path / "a.py"
    path.write_text("import torch\nx = torch.exp(torch.ones(2))\n", encoding="utf-8")
    assert scan(tmp_path).files[0].lines[1].status is LineStatus.EXACT
    key = row_key(load_table().rows("torch.exp")[0])
    for evidence in ({}, {key: {"failed": "wrong value", "cases": 3}}):
        monkeypatch.setattr(line_records, "_rule_of_row", {})
        monkeypatch.setattr(line_records, "_evidence", lambda found=evidence: found)
        line = scan(tmp_path).files[0].lines[1]
        assert (line.status, line.code) == (LineStatus.REVIEW, "C103")


def test_only_what_ran_is_covered() -> None:
    lines = [
        Line(1, LineStatus.REVIEW, "C206"),
        Line(2, LineStatus.REVIEW, "C206"),
        Line(3, LineStatus.UNKNOWN, "M110"),
        Line(4, LineStatus.EXACT, "C101"),
    ]
    after = covered(FileLines("a.py", lines), {1, 3, 4})
    assert [line.status for line in after.lines] == [
        LineStatus.PROVED,
        LineStatus.REVIEW,
        LineStatus.UNKNOWN,
        LineStatus.EXACT,
    ]


def test_an_agreeing_comparison_proves_what_it_ran(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, report: Report
) -> None:
    recipes = tmp_path / "recipes.yaml"
    recipes.write_text("modules: [{name: net, module: net, build: Net()}]", encoding="utf-8")

    def compared(_repo: Path, _out: Path, known: list[Recipe], **_options: object) -> list[Outcome]:
        return [Outcome(known[0], "training", Verdict.PASS, "10 losses", 10, ran={"net.py": [16, 17]})]

    monkeypatch.setattr(command, "compare_modules", compared)
    monkeypatch.setattr(command, "import_modules", lambda *_args, **_options: [])
    after = convert(tmp_path / "repo", tmp_path / "out", modules=recipes)
    before = {line.number: line.status for line in report.files[0].lines}
    found = {line.number: line.status for line in after.files[0].lines}
    assert found == before | {17: LineStatus.PROVED}
    assert after.facts["lines_by_status"]["needs review"] == 2
    assert Report.from_json(tmp_path / "out" / "report.json").files == after.files
    assert "`net.py`: 22 (M121), 23 (C205)" in (tmp_path / "out" / "MIGRATION.md").read_text(encoding="utf-8")
