"""`scan` and `convert`: what they refuse, what they write, what they never do."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from mappings.errors import UserError
from migrate.cli import main
from migrate.code import command, convert_file
from migrate.code.command import convert, scan
from migrate.report import Report

NET = "import torch\n\n\ndef f(x: torch.Tensor):\n    return torch.cat([x, x], dim=0)\n"


def repository(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


def codes(report: Report) -> list[str]:
    return [f.code for f in report.findings]


# -- refusals
def test_bad_input_is_a_user_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a directory"):
        scan(tmp_path / "missing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="no Python files"):
        scan(tmp_path / "empty")
    repo = repository(tmp_path / "repo", {"a.py": NET})
    with pytest.raises(UserError, match="target 'gpu' is unknown"):
        convert(repo, tmp_path / "out", target="gpu")


def test_output_directory_is_guarded(tmp_path: Path) -> None:
    repo = repository(tmp_path / "repo", {"a.py": NET})
    for bad in (repo, repo / "sub", tmp_path):
        with pytest.raises(UserError, match=r"inside the repository|contains the repository"):
            convert(repo, bad)
    out = tmp_path / "out"
    convert(repo, out)
    with pytest.raises(UserError, match="exists; give another directory"):
        convert(repo, out)
    (out / "stale.py").write_text("", encoding="utf-8")
    convert(repo, out, force=True)
    assert not (out / "stale.py").exists()
    mine = repository(tmp_path / "mine", {"thesis.txt": "precious"})
    with pytest.raises(UserError, match="no earlier output"):
        convert(repo, mine, force=True)
    assert (mine / "thesis.txt").read_text(encoding="utf-8") == "precious"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["mine", "out", "repo"]


# -- what is written
def test_tree_helpers_and_reports(tmp_path: Path) -> None:
    files = {
        "pkg/__init__.py": "from .layers import Net\n",
        "pkg/layers.py": "from torch import nn\n\n\nclass Net(nn.Module):\n    pass\n",
        "scripts/run.py": "import torch\nfrom pkg import Net\n\ntorch.manual_seed(0)\n",
        "data/notes.txt": "torch",
        "README.md": "uses torch",
    }
    repo = repository(tmp_path / "repo", files)
    out = tmp_path / "out"
    report = convert(repo, out)
    for name in ("data/notes.txt", "README.md", "pkg/__init__.py"):
        assert (out / name).read_text(encoding="utf-8") == files[name]
    # each folder from which something is imported gets the helpers it needs, and no others
    assert sorted(p.name for p in (out / "ms_compat").iterdir()) == ["__init__.py", "module.py"]
    assert sorted(p.name for p in (out / "scripts/ms_compat").iterdir()) == ["__init__.py", "random.py"]
    assert Report.from_json(out / "report.json").facts == report.facts
    assert "uses of torch converted" in (out / "MIGRATION.md").read_text(encoding="utf-8")
    assert report.facts["files"] == 3 and report.facts["files_that_compile"] == 3


def test_second_run_changes_nothing(tmp_path: Path) -> None:
    repo = repository(tmp_path / "repo", {"a.py": NET + "\n\nz = torch.frobnicate(1)\n", "b.py": "x = 1\n"})
    convert(repo, tmp_path / "once")
    report = convert(tmp_path / "once", tmp_path / "twice")
    for path in (tmp_path / "once").rglob("*.py"):
        relative = path.relative_to(tmp_path / "once")
        assert (tmp_path / "twice" / relative).read_bytes() == path.read_bytes()
    assert codes(report) == ["M110"]


def test_line_ends_and_encodings_are_kept(tmp_path: Path) -> None:
    repo = tmp_path / "repo"
    repo.mkdir()
    (repo / "dos.py").write_bytes(NET.replace("\n", "\r\n").encode())
    latin = "# -*- coding: latin-1 -*-\nimport torch\nname = 'caf\xe9'\nx = torch.zeros(2)\n"
    (repo / "latin.py").write_bytes(latin.encode("latin-1"))
    convert(repo, tmp_path / "out")
    dos = (tmp_path / "out" / "dos.py").read_bytes()
    assert b"ops.cat" in dos and dos.count(b"\n") == dos.count(b"\r\n")
    assert "caf\xe9" in (tmp_path / "out" / "latin.py").read_bytes().decode("latin-1")


# -- files that cannot be converted
def test_unparsable_files_are_skipped(tmp_path: Path) -> None:
    files = {"bad.py": "def f(:\n", "old.py": "print 'x'\n", "good.py": NET}
    repo = repository(tmp_path / "repo", files)
    (repo / "binary.py").write_bytes(b"x = '\xff\xfe'\n")
    report = convert(repo, tmp_path / "out")
    assert sorted(f.file or "" for f in report.findings if f.code == "M101") == ["bad.py", "binary.py", "old.py"]
    for name in ("bad.py", "old.py"):
        assert (tmp_path / "out" / name).read_text(encoding="utf-8") == files[name]
    assert "ops.cat" in (tmp_path / "out" / "good.py").read_text(encoding="utf-8")
    assert report.exit_code == 1


def test_a_crashing_pass_leaves_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(convert_file.Pass):
        def call(self, original, updated):  # type: ignore[no-untyped-def]
            if "boom" in self.context.file.source.module:
                raise RuntimeError("planted")
            return None

    monkeypatch.setattr(convert_file, "PASSES", (Broken, *convert_file.PASSES))
    repo = repository(tmp_path / "repo", {"boom.py": NET, "fine.py": NET})
    report = convert(repo, tmp_path / "out")
    assert [(f.code, f.file) for f in report.findings] == [("M102", "boom.py")]
    assert "planted" in report.findings[0].message
    assert (tmp_path / "out" / "boom.py").read_text(encoding="utf-8") == NET
    assert "ops.cat" in (tmp_path / "out" / "fine.py").read_text(encoding="utf-8")


def test_the_output_names_no_place_of_this_machine(tmp_path: Path) -> None:
    files = {
        "a.py": NET + "\nz = torch.frobnicate(1)\n",
        "b.py": "import torch\nfrom a import missing\n\nx = torch.ones(1)\n",
        "bad.py": "def f(:\n",
        "pyproject.toml": "[project\n",
    }
    repo = repository(tmp_path / "repo", files)
    report = convert(repo, tmp_path / "out", verify=True, page=tmp_path / "out" / "page.html")
    assert "M601" in codes(report) and report.subject == "repo"
    for path in (tmp_path / "out").rglob("*"):
        assert path.is_dir() or str(tmp_path).encode() not in path.read_bytes(), path


# -- trust
def test_the_repository_is_never_run(tmp_path: Path) -> None:
    trap = f"import pathlib\npathlib.Path({str(tmp_path / 'ran')!r}).touch()\n"
    repo = repository(tmp_path / "repo", {"a.py": trap + NET, "conftest.py": trap, "setup.py": trap})
    scan(repo)
    convert(repo, tmp_path / "out")
    assert not (tmp_path / "ran").exists()


def test_converter_needs_neither_framework() -> None:
    program = (
        "import sys; from migrate.code.command import scan; from pathlib import Path; scan(Path(sys.argv[1])); "
        "print(sorted({'torch', 'mindspore', 'ms_models'} & set(sys.modules)))"
    )
    sample = Path(__file__).parents[2] / "samples" / "torch_gpt"
    done = subprocess.run([sys.executable, "-c", program, str(sample)], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "[]", done.stderr


def test_verify_imports_the_output(tmp_path: Path) -> None:
    files = {
        "good.py": NET,
        "missing.py": NET + "\nimport package_that_does_not_exist\n",
        "dies.py": NET + "\nimport os\n\nos._exit(3)\n",
    }
    repo = repository(tmp_path / "repo", files)
    report = convert(repo, tmp_path / "out", verify=True)
    failed = {f.file: f.message for f in report.findings if f.code == "M601"}
    assert set(failed) == {"missing.py", "dies.py"}
    assert "package_that_does_not_exist" in failed["missing.py"] and "code 3" in failed["dies.py"]
    assert report.facts["modules_imported"] == 1
    assert "M601" in report.rules and "1 of 3 changed files import" in (tmp_path / "out" / "MIGRATION.md").read_text()
    assert json.loads((tmp_path / "out" / "report.json").read_text(encoding="utf-8"))["exit_code"] == 1


@pytest.mark.parametrize("arguments", [["scan"], ["code", "-o", "out"]])
def test_page_and_sarif_are_written_on_demand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    repository(tmp_path / "repo", {"a.py": NET + "\nz = torch.frobnicate(1)\n"})
    assert main([*arguments, "repo", "--html", "pages/p.html", "--sarif", "logs/s.sarif"]) == 1
    page = (tmp_path / "pages" / "p.html").read_text(encoding="utf-8")
    assert "ops.cat([x, x], axis=0)" in page and "torch.cat([x, x], dim=0)" in page
    log = json.loads((tmp_path / "logs" / "s.sarif").read_text(encoding="utf-8"))
    place = log["runs"][0]["results"][0]["locations"][0]["physicalLocation"]
    assert (
        place["artifactLocation"]["uri"] == "a.py" and place["region"]["snippet"]["text"] == "z = torch.frobnicate(1)"
    )
    assert "4 lines: 2 exact, 1 unsupported, 1 unknown" in capsys.readouterr().out
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted({"repo", "pages", "logs"} | set(arguments[2:]))


def test_targets_are_those_of_the_command_line() -> None:
    assert command.TARGETS == ("portable", "ascend")
