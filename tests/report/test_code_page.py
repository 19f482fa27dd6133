"""The page of a conversion: complete, self-contained, escaped, cheap with many files."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from mappings.errors import UserError
from migrate.report import FileLines, Finding, Line, LineStatus, Report, Rule, Severity, Stage, Verdict
from migrate.report.code_page import Sources, write_code_page
from migrate.report.side_by_side import changes

OLD = "import torch\n\n\ndef f(x):\n    # keep\n    y = torch.cat([x, x], dim=0)\n    return torch.frob(y)\n"
NEW = (
    "from mindspore import ops\n\n\ndef f(x):\n    # keep\n    y = ops.cat([x, x], axis=0)\n"
    "    # TODO(msmigrate:M110) torch.frob\n    return torch.frob(y)\n"
)
EVIL = "</script><script>alert('x')</script> <!-- & \u2028"


def report(files: int = 1, findings: int = 1) -> Report:
    rules = {
        "M110": Rule("M110", "unknown torch name", Severity.WARNING, "It is unknown.", "Write it."),
        "C101": Rule("C101", "same meaning", Severity.NOTE, "It means the same.", "Nothing."),
    }
    lines = [Line(6, LineStatus.EXACT, "C101", "torch.cat"), Line(7, LineStatus.UNKNOWN, "M110", "torch.frob")]
    found = [
        Finding("M110", Severity.WARNING, "torch.frob", "", "", file=f"f{i % files}.py", line=7)
        for i in range(findings)
    ]
    return Report(
        "code",
        "repo",
        findings=found,
        stages=[Stage("output is valid Python", Verdict.PASS, "1 of 1", 1)],
        facts={"files": files, "files_that_compile": files, "files_changed": files},
        files=[FileLines(f"f{i}.py", lines) for i in range(files)],
        rules=rules,
    )


def data(page: str) -> dict[str, object]:
    match = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    assert match is not None
    body: dict[str, object] = json.loads(match[1])
    return body


def rebuilt(old: str, new: str) -> tuple[list[str], list[str]]:
    """Both sides as the page shows them: unchanged lines, and the rows of the changes."""
    left, right, at = [], [], 0
    lines = old.splitlines()
    for change in changes(lines, new.splitlines()):
        left += lines[at : change.start]
        right += lines[at : change.start]
        left += [lines[i] for i, _ in change.rows if i is not None]
        right += [text for _, text in change.rows if text is not None]
        at = change.stop
    return left + lines[at:], right + lines[at:]


@pytest.mark.parametrize(
    ("old", "new"),
    [(OLD, NEW), (NEW, OLD), ("", "a\nb\n"), ("a\nb\n", ""), (OLD, OLD), ("\n".join("ab" * 40), "\n".join("bc" * 40))],
)
def test_no_line_is_lost_beside_each_other(old: str, new: str) -> None:
    assert rebuilt(old, new) == (old.splitlines(), new.splitlines())


def test_lines_stand_beside_their_conversion() -> None:
    rows = [row for change in changes(OLD.splitlines(), NEW.splitlines()) for row in change.rows]
    assert (5, "    y = ops.cat([x, x], axis=0)") in rows
    assert (None, "    # TODO(msmigrate:M110) torch.frob") in rows


def test_the_page_is_complete_and_needs_nothing_else(tmp_path: Path) -> None:
    sources = [Sources("f0.py", OLD, NEW), Sources("plain.py", "x = 1\n", "x = 1\n")]
    page = write_code_page(report(), sources, tmp_path / "deep" / "page.html").read_text(encoding="utf-8")
    for expected in (
        "msmigrate code: repo",
        "2 lines: 1 exact, 1 unknown",
        "1 of 1 files compile",
        "f0.py",
        "1 warning",
    ):
        assert expected in page, expected
    assert "1 file has nothing to do with torch" in page and "plain.py" not in page
    body = data(page)
    assert [file["path"] for file in body["files"]] == ["f0.py"]  # type: ignore[attr-defined, index]
    assert body["rules"]["M110"]["fix"] == "Write it."  # type: ignore[index]
    assert not re.search(r"\b(?:src|href)=|@import|url\(|https?://", page)
    labelled = re.findall(r"<label>(?:[^<]*)<(?:input|select)", page.replace("\n", ""))
    assert len(labelled) == 5 + 3 + 2  # every field of the filters has a label
    assert '<html lang="en">' in page and 'role="status"' in page


def test_text_of_the_repository_is_only_text(tmp_path: Path) -> None:
    sources = [Sources(EVIL, EVIL, NEW + EVIL)]
    body = report()
    body.findings.append(Finding("M110", Severity.NOTE, EVIL, EVIL, EVIL, file=EVIL, line=1))
    page = write_code_page(body, sources, tmp_path / "page.html").read_text(encoding="utf-8")
    assert "alert('x')</script>" not in page and page.count("<script") == 2 == page.count("</script>")
    assert EVIL in [file["path"] for file in data(page)["files"]]  # type: ignore[attr-defined, index]


def test_many_files_start_folded(tmp_path: Path) -> None:
    sources = [Sources(f"f{i}.py", OLD, NEW) for i in range(200)]
    page = write_code_page(report(200, 700), sources, tmp_path / "page.html").read_text(encoding="utf-8")
    assert page.count('<details class="file"') == 200 and "<details open" not in page
    assert page.count("<tr") == 2  # the rows of a file are made when it is opened
    assert len(page) < 600_000


def test_findings_without_a_python_file_are_there(tmp_path: Path) -> None:
    body = report()
    body.findings.append(Finding("M115", Severity.WARNING, "needs torch", "", "", file="pyproject.toml"))
    body.findings.append(Finding("M603", Severity.WARNING, "net differs", "", ""))
    page = write_code_page(body, [Sources("f0.py", OLD, NEW)], tmp_path / "page.html").read_text(encoding="utf-8")
    assert "pyproject.toml" in page and "whole repository" in page and "net differs" in page


def test_a_page_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be written"):
        write_code_page(report(), [], tmp_path)
