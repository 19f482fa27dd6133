"""A run of two steps in this process, and its checkpoint in other layouts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
from safetensors.numpy import save_file

from mappings.families import family_for_config
from mappings.layout import ParallelLayout
from migrate.weights.command import reshard
from ms_models.train import loop
from ms_models.train.config import load
from tests.ms_models.train.run_helpers import LLAMA, SEQ_LENGTH, write_config, write_data

QWEN3: dict[str, Any] = {
    **LLAMA, "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "attention_bias": False,
    "num_hidden_layers": 4,
}  # fmt: skip
QWEN3_MOE: dict[str, Any] = {
    **QWEN3, "model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "num_hidden_layers": 2,
    "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 18, "decoder_sparse_step": 1,
    "mlp_only_layers": [], "norm_topk_prob": True,
}  # fmt: skip
STEPS = 2
__all__ = ["QWEN3", "QWEN3_MOE", "SEQ_LENGTH", "STEPS", "in_layout", "train", "write_model"]


def write_model(directory: Path, config: dict[str, Any]) -> Path:
    """A Hugging Face directory with random weights."""
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps(config))
    rng = np.random.default_rng(0)
    weights = {
        p.name: (rng.standard_normal(p.shape) * 0.1 + ("norm" in p.name)).astype(np.float32)
        for p in family_for_config(config).parameters(config)
    }
    save_file(weights, directory / "model.safetensors", {"format": "pt"})
    return directory


def train(root: Path, config: dict[str, Any]) -> Path:
    """Run directory of a few steps in this process."""
    ms.runtime.launch_blocking()
    model = write_model(root / "model", config)
    run = root / "run"
    path = write_config(
        root / "run.yaml", model, write_data(root / "data"), run,
        train={"steps": STEPS, "accumulation": 1, "jit": False, "eval_every": 0},
        schedule={"warmup_steps": 1, "kind": "wsd"}, checkpoint={"every": 0}, optimizer={"lr": 0.01},
    )  # fmt: skip
    (run / "logs").mkdir(parents=True)
    loop.run(load(path))
    return run


def in_layout(run: Path, out: Path, layout: ParallelLayout) -> Path:
    """A run directory whose checkpoint is of another layout."""
    name = f"step_{STEPS:08d}"
    out.mkdir()
    assert reshard(run / name, out / name, layout=layout).exit_code == 0
    (out / "LATEST").write_text(f"{name}\n")
    return out
