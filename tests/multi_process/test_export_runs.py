"""Checkpoints that ranks of different layouts saved themselves, exported: transformers loads every tensor.

Layouts that a checkpoint was cut for without running are in tests/export.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from migrate.export.command import MINDSPORE_TRANSFORMERS, export
from migrate.weights.command import diff
from ms_models.train.launch import starting
from tests.export.trained import QWEN3, QWEN3_MOE, STEPS, write_model
from tests.ms_models.train.run_helpers import write_config, write_data

pytestmark = [pytest.mark.multi_process, pytest.mark.grid, pytest.mark.timeout(400)]

RUNS: dict[str, tuple[dict[str, Any], dict[str, int]]] = {
    "pp2 vpp2 dp2 zero1": (QWEN3, {"pp": 2, "vpp": 2, "dp": 2, "zero": 1}),
    "dp2 zero3": (QWEN3, {"dp": 2, "zero": 3}),
    "dp2 ep2 tp2": (QWEN3_MOE, {"dp": 2, "ep": 2, "tp": 2}),
}


@pytest.mark.parametrize("name", RUNS)
def test_a_run_is_exported(name: str, tmp_path: Path) -> None:
    config, layout = RUNS[name]
    model, data = write_model(tmp_path / "model", config), write_data(tmp_path / "data")
    train = {"steps": STEPS, "accumulation": 2, "jit": False, "eval_every": 0}
    path = write_config(
        tmp_path / "run.yaml", model, data, tmp_path / "run",
        layout=layout, train=train, schedule={"warmup_steps": 0}, checkpoint={"every": 0},
    )  # fmt: skip
    lines: list[str] = []
    assert starting.launch(path, echo=lines.append) == 0, "\n".join(lines)
    step = tmp_path / "run" / f"step_{STEPS:08d}"
    assert export(tmp_path / "run", tmp_path / "hf", target="hf").exit_code == 0
    assert diff(step, tmp_path / "hf").exit_code == 0
    assert diff(model, tmp_path / "hf").exit_code == 1, "the run trained nothing"
    loaded, info = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "hf", output_loading_info=True, dtype=torch.float32
    )
    loaded.set_experts_implementation("eager")  # torch's grouped product refuses widths that are no multiple of 4
    assert not info["missing_keys"] and not info["unexpected_keys"]
    assert torch.isfinite(loaded(torch.arange(12)[None]).logits).all()
    out = tmp_path / "mindspore"
    assert export(tmp_path / "run", out, target=MINDSPORE_TRANSFORMERS, optimizer=True).exit_code == 0
    assert diff(out / "checkpoint", tmp_path / "hf").exit_code == 0
