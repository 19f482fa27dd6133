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
