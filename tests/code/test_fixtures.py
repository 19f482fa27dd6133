"""Fixture pairs: `<pass>/<case>.in.py` becomes `<case>.out.py`, with the findings of `<case>.txt`."""

from __future__ import annotations

import io
import tokenize
from pathlib import Path

import pytest

from mappings.api import load_table
from migrate.code.analysis import analyse
from migrate.code.convert_file import Converted, convert_file
from migrate.code.project import load_project

FIXTURES = Path(__file__).parent / "fixtures"
CASES = sorted(FIXTURES.glob("*/*.in.py"))


def converted(text: str, directory: Path) -> Converted:
    """Convert one file as a repository of its own, with the fixtures' table."""
    directory.mkdir(exist_ok=True)
    (directory / "case.py").write_text(text, encoding="utf-8")
    analysis = analyse(load_project(directory), table=load_table(FIXTURES / "table"))
    assert not analysis.unparsed
    return convert_file(analysis, analysis.files["case"])


def comments(text: str) -> list[str]:
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return [t.string for t in tokens if t.type == tokenize.COMMENT and "TODO(msmigrate:" not in t.string]


@pytest.mark.parametrize("path", CASES, ids=lambda p: f"{p.parent.name}-{p.name.removesuffix('.in.py')}")
def test_fixture(path: Path, tmp_path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    base = path.name.removesuffix(".in.py")
    result = converted(source, tmp_path / "first")
    findings = [f"{f.code} {f.line} {f.message}" for f in result.findings]
    assert result.text == (path.parent / f"{base}.out.py").read_text(encoding="utf-8")
    expected = path.parent / f"{base}.txt"
    assert findings == (expected.read_text(encoding="utf-8").splitlines() if expected.exists() else [])
    compile(result.text, str(path), "exec")
    # Order may change where statements move into a function, but no comment is lost or doubled.
    assert sorted(comments(result.text)) == sorted(comments(source))
    again = converted(result.text, tmp_path / "second")
    assert again.text == result.text


def test_every_pass_has_fixtures() -> None:
    folders = {path.parent.name for path in CASES}
    assert folders == {
        "cells",
        "complex_products",
        "names",
        "dynamic",
        "devices",
        "inplace",
        "shared_writes",
        "members",
        "executed_texts",
        "training",
        "imports",
        "third_party",
        "runtime_checks",
    }
    assert len(CASES) >= 15
