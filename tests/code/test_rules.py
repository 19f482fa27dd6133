"""The register of rules is complete, its page is current, and every code that a pass may give is in it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mappings.errors import UserError
from migrate.cli import main
from migrate.code import rules
from migrate.code.convert_file import PASSES
from migrate.code.findings import CODES
from migrate.report import LineStatus, Report

ROOT = Path(__file__).parents[2]


def test_every_rule_has_its_words() -> None:
    assert set(CODES) <= set(rules.RULES)
    for rule in rules.RULES.values():
        assert rule.title and rule.why.endswith(".") and rule.fix.endswith("."), rule.code
        assert re.fullmatch(r"[CM]\d{3}", rule.code)
    titles = [rule.title for rule in rules.RULES.values()]
    assert len(titles) == len(set(titles))


def test_codes_in_the_source_are_registered() -> None:
    named: set[str] = set()
    for path in (ROOT / "migrate" / "code").rglob("*.py"):
        named |= set(re.findall(r'"([CM]\d{3})"', path.read_text(encoding="utf-8")))
    assert named and named <= set(rules.RULES), sorted(named - set(rules.RULES))
    assert {made.rule for made in PASSES} - {None} <= set(rules.RULES)


def test_the_page_is_current() -> None:
    page = (ROOT / "docs" / "code-rules.md").read_text(encoding="utf-8")
    assert page == rules.page(), "run: msmigrate rule --markdown > docs/code-rules.md"


def test_rules_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rule"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in listed] == list(rules.RULES)
    assert main(["rule", "m121"]) == 0
    assert CODES["M121"].why in capsys.readouterr().out
    assert main(["rule", "M999"]) == 2
    with pytest.raises(UserError, match="no such rule"):
        rules.rule("M999")


IN_PLACE = """\
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.act = nn.ReLU(inplace=True)

    def forward(self, x):
        return self.act(x) + x
"""


@pytest.mark.parametrize("unsafe", [False, True])
def test_unsafe_rules_are_applied_when_they_are_asked_for(tmp_path: Path, unsafe: bool) -> None:
    """torch adds relu(x) to itself here, as `act` overwrites x; an ordinary module would add x."""
    (tmp_path / "repo").mkdir()
    (tmp_path / "repo" / "net.py").write_text(IN_PLACE, encoding="utf-8")
    arguments = ["code", str(tmp_path / "repo"), "-o", str(tmp_path / "out"), *(["--unsafe"] if unsafe else [])]
    assert main(arguments) == (0 if unsafe else 1)
    report = Report.from_json(tmp_path / "out" / "report.json")
    line = next(line for line in report.files[0].lines if line.number == 7)
    text = (tmp_path / "out" / "net.py").read_text(encoding="utf-8")
    if unsafe:
        assert "self.act = nn.ReLU()" in text and "torch" not in text
        assert (line.status, line.code, report.findings) == (LineStatus.REVIEW, "C214", [])
    else:
        assert "# TODO(msmigrate:M306)" in text and "nn.ReLU(inplace=True)" in text
        assert (line.status, line.code) == (LineStatus.UNSUPPORTED, "M306")
    assert not rules.RULES[line.code].safe and not report.rules[line.code].safe


def test_unsafe_rules_are_marked(capsys: pytest.CaptureFixture[str]) -> None:
    unsafe = {rule.code for rule in rules.RULES.values() if not rule.safe}
    assert unsafe == {"M306", "C214"}
    main(["rule"])
    marked = {line.split()[0] for line in capsys.readouterr().out.splitlines() if "unsafe:" in line}
    assert marked == unsafe
    assert rules.page().count(", unsafe;") == len(unsafe)
