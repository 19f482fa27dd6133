"""SARIF: valid by the rules of the format that concern us, complete, and stable when lines move."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from sarif_schema import check_log

from mappings.errors import UserError
from migrate.report import Finding, Report, Rule, Severity, Stage, Verdict
from migrate.report.sarif import FINGERPRINT, sarif_log, write_sarif


def finding(code: str, message: str, severity: Severity = Severity.WARNING, **place: Any) -> Finding:
    return Finding(code, severity, message, "Why it matters.", "What to do.", **place)


def test_a_log_says_everything() -> None:
    report = Report(
        "code",
        "repo",
        findings=[
            finding("M110", "no such name", file="src/my net.py", line=3),
            finding("M121", "asks", Severity.NOTE, file="src/my net.py", line=9),
            finding("W001", "missing", Severity.ERROR, tensor="lm_head.weight", field="vocab_size"),
            finding("M603", "differs"),
        ],
        stages=[Stage("s", Verdict.COULD_NOT_RUN, "no torch")],
        rules={"M110": Rule("M110", "unknown torch name", Severity.WARNING, "It is unknown.", "Write it.")},
    )
    run = check_log(sarif_log(report))
    assert [r["id"] for r in run["tool"]["driver"]["rules"]] == ["M110", "M121", "M603", "W001"]
    known = run["tool"]["driver"]["rules"][0]
    assert known["name"] == "UnknownTorchName" and "Write it." in known["help"]["text"]
    assert known["defaultConfiguration"] == {"level": "warning"}
    assert [r["level"] for r in run["results"]] == ["warning", "note", "error", "warning"]
    place = run["results"][0]["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == "src/my%20net.py" and place["region"] == {"startLine": 3}
    names = [entry["fullyQualifiedName"] for entry in run["results"][2]["locations"][0]["logicalLocations"]]
    assert names == ["lm_head.weight", "vocab_size"]
    assert "locations" not in run["results"][3]
    assert run["invocations"] == [{"executionSuccessful": False, "exitCode": 2}]


def test_what_is_better_advice_than_that_of_the_rule_stands_with_the_result() -> None:
    found = [replace(finding("C201", "a"), fix="Do this here."), finding("C201", "b")]
    rule = Rule("C201", "title", Severity.ERROR, "Why it matters.", "What to do.")
    run = check_log(sarif_log(Report("check", "x", findings=found, rules={"C201": rule})))
    assert run["results"][0]["properties"] == {"fix": "Do this here."} and "properties" not in run["results"][1]


def fingerprints(root: Path, text: str, lines: list[int], out: Path) -> list[str]:
    (root / "net.py").write_text(text, encoding="utf-8")
    found = [finding("M110", "no such name", file="net.py", line=line) for line in lines]
    write_sarif(Report("code", "repo", findings=found), out, root)
    run = check_log(json.loads(out.read_text(encoding="utf-8")))
    return [result["partialFingerprints"][FINGERPRINT] for result in run["results"]]


def test_fingerprints_stay_when_lines_move(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "log.sarif"
    before = fingerprints(tmp_path, "import torch\nx = torch.a()\ny = torch.b()\n", [2, 3], out)
    moved = fingerprints(tmp_path, "# new\n\nimport torch\n    x = torch.a()\ny = torch.b()\n", [4, 5], out)
    assert before == moved
    changed = fingerprints(tmp_path, "import torch\nx = torch.a(1)\ny = torch.b()\n", [2, 3], out)
    assert changed[0] != before[0] and changed[1] == before[1]
    twice = fingerprints(tmp_path, "x = torch.a()\nx = torch.a()\n", [1, 2], out)
    assert twice[0] == before[0] and twice[1] != twice[0]


def test_the_log_names_no_place_of_this_machine(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text("x = torch.a()\n", encoding="utf-8")
    report = Report("code", str(tmp_path), findings=[finding("M110", "m", file="net.py", line=1)])
    write_sarif(report, tmp_path / "log.sarif", tmp_path)
    assert str(tmp_path) not in (tmp_path / "log.sarif").read_text(encoding="utf-8")


def test_the_schema_of_this_test_can_fail() -> None:
    log = sarif_log(Report("code", "repo", findings=[finding("M110", "m", file="net.py", line=1)]))
    place = log["runs"][0]["results"][0]["locations"][0]["physicalLocation"]
    for uri in ("/work/net.py", "file:///net.py", "my net.py"):
        place["artifactLocation"]["uri"] = uri
        with pytest.raises(jsonschema.ValidationError):
            check_log(log)


def test_a_log_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be written"):
        write_sarif(Report("code", "repo"), tmp_path)
