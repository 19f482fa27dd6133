"""`train --dry-run --report`: checks as stages, warnings as notes, and the page takes it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from migrate.cli import main
from tests.ms_models.train.run_helpers import write_config, write_data, write_model


def judged(tmp_path: Path, *overrides: str) -> tuple[int, dict[str, Any]]:
    if not (tmp_path / "run.yaml").exists():
        write_config(tmp_path / "run.yaml", write_model(tmp_path / "m"), write_data(tmp_path / "d"), tmp_path / "out")
    file = tmp_path / "reports" / "dry.json"
    settings = [word for one in overrides for word in ("--set", one)]
    code = main(["train", str(tmp_path / "run.yaml"), "--dry-run", "--report", str(file), *settings])
    return code, json.loads(file.read_text(encoding="utf-8"))


def test_checks_are_stages_and_warnings_notes(tmp_path: Path) -> None:
    code, report = judged(tmp_path, "optimizer.clip_norm=0")
    assert (code, report["exit_code"]) == (0, 0)
    assert {"weights": "pass", "disk": "pass"}.items() <= {s["name"]: s["verdict"] for s in report["stages"]}.items()
    assert [one["severity"] for one in report["findings"] if one["code"] == "R107"] == ["note"]
    code, report = judged(tmp_path, "layout.tp=3")
    assert (code, report["exit_code"]) == (1, 1)
    code, report = judged(tmp_path, "layout.tq=3")
    assert (code, report["exit_code"]) == (2, 2)
    assert [stage["verdict"] for stage in report["stages"]] == ["could_not_run"]
    assert main(["report", str(tmp_path / "reports" / "dry.json"), "-o", str(tmp_path / "page.html")]) == 0


def test_a_report_of_a_run_that_starts_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    judged(tmp_path)
    capsys.readouterr()
    assert main(["train", str(tmp_path / "run.yaml"), "--report", str(tmp_path / "x.json")]) == 2
    assert "--json, --report and --device-memory belong to --dry-run" in capsys.readouterr().err
