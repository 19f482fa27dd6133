"""`msmigrate api`: four answers, evidence shown, coverage that adds up."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from mappings.api import evidence as evidence_module
from mappings.api import load_table
from mappings.api.evidence import row_key
from migrate import cli
from migrate.api.coverage import ANSWERS, FAILING, PASSING, USE_COUNTS, Coverage


@pytest.mark.parametrize(
    ("name", "exit_code", "words"),
    [
        ("torch.arange", 0, ["torch.arange: mapped", "mindspore.ops.arange($end, dtype=$dtype)", "evidence"]),
        ("F.gelu", 0, ["torch.nn.functional.gelu: mapped", "approximate"]),
        ("Tensor.view", 0, ["torch.Tensor.view: mapped"]),
        ("torch.Tensor.backward", 1, ["unsupported", "reason", "advice", "value_and_grad"]),
        ("torch.jit.freeze", 1, ["known but unmapped", "no row"]),
    ],
)
def test_answers_differ(name: str, exit_code: int, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["api", name]) == exit_code
    out = capsys.readouterr().out
    assert all(word in out for word in words), out


@pytest.mark.parametrize(("name", "near"), [("torch.arrange", "torch.arange"), ("Tensor.veiw", "torch.Tensor.view")])
def test_unknown_names_are_an_error_with_the_nearest(name: str, near: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["api", name]) == 2
    error = capsys.readouterr().err
    assert "no public name" in error and f"did you mean {near}" in error


def test_name_or_coverage() -> None:
    assert cli.main(["api"]) == 2
    assert cli.main(["api", "torch.add", "--coverage"]) == 2


def test_json_of_a_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["api", "torch.arange", "--json"]) == 0
    described = json.loads(capsys.readouterr().out)
    assert described["standing"] == "mapped" and len(described["rows"]) == len(load_table().rows("torch.arange"))
    assert described["rows"][0]["drop"]["device"] == "any"


def test_coverage_adds_up(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["api", "--coverage", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    with USE_COUNTS.open() as file:
        records = list(csv.DictReader(file))
    for kind, names, uses in (("api", 492, 9132), ("method", 133, 4794)):
        part = found["by use"][kind]
        assert len([r for r in records if r["kind"] == kind]) == sum(part["names"].values()) == names
        assert sum(part["uses"].values()) == uses and set(part["uses"]) <= set(ANSWERS)
    assert found["rows"]["rows"] == len(list(load_table()))
    assert sum(n for key, n in found["by op_db"].items() if key != "entries") == found["by op_db"]["entries"]
    assert cli.main(["api", "--coverage"]) == 0
    assert "namespace" in capsys.readouterr().out


def test_failed_or_missing_evidence_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = load_table().rows("torch.sqrt")[0]
    file = tmp_path / "evidence.json"
    monkeypatch.setattr(evidence_module, "EVIDENCE", file)
    for content, answer in (
        ({row_key(row): {"cases": 1}}, PASSING),
        ({row_key(row): {"cases": 1, "failed": "values"}}, FAILING),
        ({"torch.sqrt 000000000000": {"cases": 1}}, FAILING),
        ({row_key(row): {"cases": 0, "samples": {"wrong": 3}}}, FAILING),
    ):
        file.write_text(json.dumps(content))
        assert Coverage().answer("torch.sqrt") == answer
