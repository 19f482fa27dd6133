"""Fixture pairs: `<pass>/<case>.in.py` becomes `<case>.out.py`, with the findings of `<case>.txt`."""

from __future__ import annotations

import io
import re
import tokenize
from pathlib import Path

import pytest

from mappings.api import load_table
from migrate.code import convert_file as convert_file_module
from migrate.code.analysis import analyse
from migrate.code.convert_file import PASSES, Converted, convert_file
from migrate.code.findings import CODES
from migrate.code.project import load_project
from migrate.code.shard.apply import Shard

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


# -- completeness
PASS_FOLDERS = {made.__module__.rpartition(".")[2]: made for made in PASSES if made is not Shard}
"""A pass has the fixtures of the folder that is named as its module; `Shard` needs a plan, see `test_shard.py`."""
OTHER_FOLDERS = {"annotations", "evidence", "guarded_imports", "imports"}
"""Modules that act on a file without being passes."""
DEMANDS = {
    "an import under another name": r"^ *(import [\w.]+ as \w+|from [\w.]+ import .*\w+ as \w+)",
    "a comment": r"#",
    "a blank line in a block": r"^ +\S.*\n\n +\S",
    "both kinds of quotes": r"'[\s\S]*\"|\"[\s\S]*'",
}
"""What the inputs of a folder show together."""


def test_every_pass_has_fixtures() -> None:
    assert {path.parent.name for path in CASES} == {*PASS_FOLDERS, *OTHER_FOLDERS}


@pytest.mark.parametrize("folder", sorted({*PASS_FOLDERS, *OTHER_FOLDERS}))
def test_fixtures_of_a_folder_show_what_matters(folder: str) -> None:
    inputs = {path.name: path.read_text(encoding="utf-8") for path in CASES if path.parent.name == folder}
    assert "left_alone.in.py" in inputs
    together = "\n".join(inputs.values())
    assert [what for what, pattern in DEMANDS.items() if not re.search(pattern, together, re.MULTILINE)] == []


@pytest.mark.parametrize("folder", sorted(PASS_FOLDERS))
def test_a_pass_is_seen_by_its_fixtures(folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the pass its fixtures come out differently, apart from the one that it leaves alone."""
    passes = tuple(made for made in PASSES if made is not PASS_FOLDERS[folder])
    monkeypatch.setattr(convert_file_module, "PASSES", passes)
    changed = []
    for path in (path for path in CASES if path.parent.name == folder):
        base = path.name.removesuffix(".in.py")
        result = converted(path.read_text(encoding="utf-8"), tmp_path / base)
        text = "".join(f"{f.code} {f.line} {f.message}\n" for f in result.findings)
        expected = path.parent / f"{base}.txt"
        same_findings = text == (expected.read_text(encoding="utf-8") if expected.exists() else "")
        same_text = result.text == (path.parent / f"{base}.out.py").read_text(encoding="utf-8")
        if not (same_findings and same_text):
            changed.append(base)
    others = {path.name.removesuffix(".in.py") for path in CASES if path.parent.name == folder} - {"left_alone"}
    assert set(changed) & others
    assert "left_alone" not in changed


def test_every_finding_is_in_a_fixture_or_in_a_test() -> None:
    """M6xx come from comparisons and M7xx from a plan, which fixtures do not have."""
    shown = {line.split()[0] for path in FIXTURES.glob("*/*.txt") for line in path.read_text().splitlines()}
    tests = "".join(path.read_text(encoding="utf-8") for path in FIXTURES.parent.rglob("test_*.py"))
    ours = {code for code in CODES if code < "M6"}
    assert sorted(code for code in ours - shown if code not in tests) == []
