"""Small PyTorch programs in several styles: converted, run, and every number they return compared with PyTorch's."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from migrate.code.command import convert

PROGRAMS = Path(__file__).parent / "programs"
NAMES = sorted(path.stem for path in PROGRAMS.glob("*.py") if path.stem != "nets")
RUN = """
import importlib, json, sys
if sys.argv[1] == "mindspore":
    import mindspore
    mindspore.runtime.launch_blocking()
for name in sys.argv[2:]:
    print(json.dumps({name: importlib.import_module(name).run()}), flush=True)
"""
# fp32 sums in another order differ by about 1e-6; Adam divides by the root of tiny second moments, which magnifies it.
RTOL, ATOL = 1e-4, 1e-6


def run(framework: str, directory: Path) -> dict[str, list]:
    environment = {**os.environ, "PYTHONPATH": str(directory), "OMP_NUM_THREADS": "2", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", RUN, framework, *NAMES]
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    results: dict[str, list] = {}
    for line in done.stdout.splitlines():
        if line.startswith("{"):
            results.update(json.loads(line))
    return results


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, list], dict[str, list]]:
    out = tmp_path_factory.mktemp("programs") / "out"
    report = convert(PROGRAMS, out)
    assert report.exit_code == 0, [f"{f.code} {f.file}:{f.line} {f.message}" for f in report.findings]
    assert report.facts["torch_names_unconverted"] == 0
    for path in out.rglob("*.py"):
        if path.parent.name != "ms_compat":
            assert "import torch" not in path.read_text(encoding="utf-8")
    return run("torch", PROGRAMS), run("mindspore", out)


def differences(left: list, right: list) -> list[int]:
    """Positions at which two result lists differ."""
    assert len(left) == len(right) > 5
    return [
        i
        for i, (a, b) in enumerate(zip(left, right, strict=True))
        if (a != b if isinstance(a, str | int) else not math.isclose(a, b, rel_tol=RTOL, abs_tol=ATOL))
    ]


@pytest.mark.parametrize("name", NAMES)
def test_program_gives_the_numbers_of_pytorch(name: str, results: tuple[dict[str, list], dict[str, list]]) -> None:
    torch, mindspore = results
    assert differences(torch[name], mindspore[name]) == []


def test_a_changed_number_is_noticed(results: tuple[dict[str, list], dict[str, list]]) -> None:
    reference = results[0]["accumulation"]
    changed = [*reference[:-1], reference[-1] * 1.001]
    assert differences(reference, changed) == [len(reference) - 1]


def test_all_styles_are_there() -> None:
    assert {"accumulation", "trainer_class", "two_optimizers", "in_place", "cached"} <= set(NAMES)
