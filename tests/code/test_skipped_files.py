"""Files that cannot be parsed or that a pass fails on are copied with a reason, and everything else goes on."""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path

import libcst as cst
import pytest

from migrate.code import analysis, convert_file
from migrate.code.command import convert
from migrate.code.trees import nesting

NET = "import torch\n\n\ndef f(x: torch.Tensor):\n    return torch.cat([x, x], dim=0)\n"
LONG = "import torch\nx = " + " + ".join(["'a'"] * 900) + "\ny = torch.cat([x, x], dim=0)\n"
# a megabyte that some program wrote
GENERATED = (
    "import torch\nTABLE = [\n" + "    0.12345678, 0.2,\n" * 1000 + "]\nDATA = '\\\n" + "0123\\\n" * 180_000 + "'\n"
)
BAD: dict[str, bytes] = {
    "syntax.py": b"import torch\ndef f(:\n    pass\n",
    "python2.py": b"import torch\nprint 'x'\nexec 'y' in {}\n",
    "zero.py": b"import torch\nx = '\x00'\n",
    "zero_alone.py": b"\x00",
    "coding.py": b"# -*- coding: no-such-coding -*-\nimport torch\n",
    "latin_without_cookie.py": b"import torch\nname = 'caf\xe9'\n",
    "utf16.py": "import torch\n".encode("utf-16"),
    "broken_utf8.py": b"\xef\xbb\xbf# -*- coding: latin-1 -*-\nimport torch\n",
    "tabs.py": b"import torch\nif 1:\n\tx = 1\n        y = 2\n",
}
GOOD: dict[str, bytes] = {
    "net.py": NET.encode(),
    "latin.py": "# -*- coding: latin-1 -*-\nimport torch\nname = 'caf\xe9'\nx = torch.zeros(2)\n".encode("latin-1"),
    "bom.py": b"\xef\xbb\xbfimport torch\nx = torch.zeros(2)\n",
    "empty.py": b"",
    "comment.py": b"# import torch",
    "mac.py": b"import torch\rx = torch.zeros(2)\r",
    "form_feed.py": b"import torch\n\x0c\nx = torch.zeros(2)\n",
    "generated.py": GENERATED.encode(),
}


def write(root: Path, files: dict[str, bytes]) -> Path:
    root.mkdir()
    for name, text in files.items():
        (root / name).write_bytes(text)
    return root


def test_every_bad_file_is_copied_with_a_reason(tmp_path: Path) -> None:
    repo = write(tmp_path / "repo", {**BAD, **GOOD})
    assert len(GOOD["generated.py"]) > 1_000_000
    report = convert(repo, tmp_path / "out")
    reasons = {str(f.file): f.message for f in report.findings if f.code in ("M101", "M102")}
    assert set(reasons) == set(BAD)
    for name, reason in reasons.items():
        assert len(reason) > 10 and str(tmp_path) not in reason, name
        assert (tmp_path / "out" / name).read_bytes() == BAD[name]
    for name in GOOD:
        new = (tmp_path / "out" / name).read_bytes()
        ast.parse(new)
        assert name == "comment.py" or b"import torch" not in new, name
    assert report.exit_code == 1
    left = {file.path: [line.code for line in file.lines] for file in report.files}
    assert left["syntax.py"] == left["python2.py"] == ["M101"]
    body = json.loads((tmp_path / "out" / "report.json").read_text(encoding="utf-8"))
    assert body["facts"]["files_that_compile"] == len(GOOD)


def test_encodings_and_line_ends_stay(tmp_path: Path) -> None:
    names = ("latin.py", "bom.py", "mac.py", "form_feed.py")
    convert(write(tmp_path / "repo", {name: GOOD[name] for name in names}), tmp_path / "out")
    out = {name: (tmp_path / "out" / name).read_bytes() for name in names}
    assert b"'caf\xe9'" in out["latin.py"]
    assert out["bom.py"].startswith(b"\xef\xbb\xbf")
    assert b"\n" not in out["mac.py"]
    assert b"\x0c" in out["form_feed.py"]
    assert all(b"zeros" in text for text in out.values())


def test_a_sum_of_many_terms_is_converted(tmp_path: Path) -> None:
    """It is nested as deep as it has terms, deeper than Python's default limit of frames."""
    repo = write(tmp_path / "repo", {"long.py": LONG.encode()})
    assert convert(repo, tmp_path / "out").findings == []
    assert b"ops.cat" in (tmp_path / "out" / "long.py").read_bytes()


def test_nesting_beyond_all_frames_costs_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nesting, "FRAMES", 0)  # so that a small file is too much; libcst takes minutes for a large one
    monkeypatch.setattr(analysis, "DEEPEST", 500)
    repo = write(tmp_path / "repo", {"long.py": LONG.encode(), "net.py": NET.encode()})
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(1000)  # Python's own; libraries that other tests import raise it
    try:
        report = convert(repo, tmp_path / "out")
    finally:
        sys.setrecursionlimit(before)
    assert [(f.code, f.file) for f in report.findings] == [("M101", "long.py")]
    assert "nested 90" in report.findings[0].message
    assert b"ops.cat" in (tmp_path / "out" / "net.py").read_bytes()


@pytest.mark.parametrize("hook", ["__init__", "enter", "call", "reference", "small_statement", "function", "block"])
@pytest.mark.parametrize("error", [RuntimeError("planted"), RecursionError("planted"), AssertionError("planted")])
def test_a_pass_that_raises_costs_one_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hook: str, error: Exception
) -> None:
    def planted(self, *args):  # type: ignore[no-untyped-def]
        context = args[0] if hook == "__init__" else self.context
        if "boom" in context.file.source.module:
            raise error
        return super(convert_file.Pass, self).__init__() if hook == "__init__" else None

    def init(self, context):  # type: ignore[no-untyped-def]
        self.context = context
        if hook == "__init__":
            planted(self, context)

    broken = type("Broken", (convert_file.Pass,), {"__init__": init, **({} if hook == "__init__" else {hook: planted})})
    monkeypatch.setattr(convert_file, "PASSES", (broken, *convert_file.PASSES))
    repo = write(tmp_path / "repo", {"boom.py": NET.encode(), "fine.py": NET.encode()})
    report = convert(repo, tmp_path / "out")
    assert [(f.code, f.file) for f in report.findings] == [("M102", "boom.py")]
    assert "planted" in report.findings[0].message
    assert (tmp_path / "out" / "boom.py").read_text(encoding="utf-8") == NET
    assert "ops.cat" in (tmp_path / "out" / "fine.py").read_text(encoding="utf-8")


def test_a_pass_that_writes_bad_python_costs_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(convert_file.Pass):
        def call(self, original, updated):  # type: ignore[no-untyped-def]
            return cst.Name("not python") if self.context.file.source.module == "boom" else None

    monkeypatch.setattr(convert_file, "PASSES", (Broken, *convert_file.PASSES))
    repo = write(tmp_path / "repo", {"boom.py": NET.encode(), "fine.py": NET.encode()})
    report = convert(repo, tmp_path / "out")
    assert [(f.code, f.file) for f in report.findings] == [("M102", "boom.py")]
    assert (tmp_path / "out" / "boom.py").read_text(encoding="utf-8") == NET
    ast.parse((tmp_path / "out" / "fine.py").read_text(encoding="utf-8"))
