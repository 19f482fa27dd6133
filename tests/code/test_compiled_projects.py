"""Projects with their training steps compiled, ten steps from PyTorch's initial values, against PyTorch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from migrate.code.command import convert
from migrate.code.execution import switched_on

PROJECTS = Path(__file__).parent / "projects"
# Of one loss; as in test_projects.py. The learning rate of kv_cache's Adam is 3e-3, lora's AdamW has 1e-2.
RTOL, ATOL = 1e-5, 5e-6
RUN = """
import runpy, sys
sys.argv = ["train.py", *sys.argv[1:]]
runpy.run_path("train.py", run_name="__main__")
recorded = sys.modules.get("ms_compat.recorded")
print("compiled" if recorded is not None and recorded.is_on() else "eager")
"""


def train(folder: Path, *arguments: str) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(folder)}
    command = [sys.executable, "-c", RUN, *arguments]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.split()[-1]


def numbers(value: Any) -> list[float]:
    if isinstance(value, dict):
        return [x for item in value.values() for x in numbers(item)]
    if isinstance(value, list):
        return [x for item in value for x in numbers(item)]
    return [float(value)]


@pytest.mark.parametrize("name", ["kv_cache", "lora"])
def test_compiled_training_gives_the_numbers_of_pytorch(name: str, tmp_path: Path) -> None:
    converted, init = tmp_path / "converted", tmp_path / "init.pt"
    steps = convert(PROJECTS / name, converted).facts["execution"]
    for file in {step["file"] for step in steps}:  # of kv_cache the step of its generation, too
        lines = [step["function_line"] for step in steps if step["file"] == file]
        path = converted / file
        path.write_text(switched_on(path.read_text(encoding="utf-8"), lines), encoding="utf-8")
    assert train(PROJECTS / name, "--out", str(tmp_path / "torch"), "--save-init", str(init)) == "eager"
    assert train(converted, "--out", str(tmp_path / "ms"), "--init-from", str(init)) == "compiled"
    want, have = (
        numbers(json.loads((tmp_path / side / "losses.json").read_text(encoding="utf-8"))) for side in ("torch", "ms")
    )
    assert len(want) >= 10
    np.testing.assert_allclose(have, want, RTOL, ATOL)
