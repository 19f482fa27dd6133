"""Importing the modules of an output: what a module does to its process is charged to it alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.code.project import load_project
from migrate.code.verify import imports


def outcomes(folder: Path, **files: str) -> dict[str, str | None]:
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
    project = load_project(folder)
    return {entry.path: entry.reason for entry in imports.import_modules(project, folder, project.sources)}


def test_a_module_that_dies_or_fails_leaves_the_others(tmp_path: Path) -> None:
    found = outcomes(tmp_path, a="import os\nos._exit(3)", b="x = 1", c="import missing_module", d="print('{}')")
    assert found["a.py"] == "the process ended with code 3"
    assert (found["b.py"], found["d.py"]) == (None, None)
    assert "missing_module" in (found["c.py"] or "")


def test_time_runs_out_for_one_module_not_for_all_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imports, "IMPORT_TIMEOUT_S", 2.5)
    found = outcomes(
        tmp_path, a="import time\ntime.sleep(1.5)", b="import time\ntime.sleep(1.5)", c="import time\ntime.sleep(99)"
    )
    assert (found["a.py"], found["b.py"]) == (None, None)
    assert "no end after 2.5 s" in (found["c.py"] or "")
