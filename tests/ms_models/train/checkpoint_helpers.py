"""Trainers and saves in one process for the tests of checkpoints."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from mappings.families import family_for_config
from mappings.layout import ParallelLayout
from ms_models import AutoModelForCausalLM
from ms_models.data.loader import TrainingLoader
from ms_models.parallel.mesh import Mesh
from ms_models.train.checkpoints import checkpoint
from ms_models.train.checkpoints.run_directory import complete_checkpoints
from ms_models.train.checkpoints.saver import Saver
from ms_models.train.config import CheckpointConfig, OptimizerConfig
from ms_models.train.step import Trainer

DEEPSEEK: dict[str, Any] = {
    "model_type": "deepseek_v3", "vocab_size": 53, "hidden_size": 24, "intermediate_size": 38, "num_hidden_layers": 2,
    "moe_intermediate_size": 11, "num_attention_heads": 2, "num_key_value_heads": 2, "kv_lora_rank": 14,
    "q_lora_rank": None, "qk_nope_head_dim": 5, "qk_rope_head_dim": 6, "v_head_dim": 9, "n_routed_experts": 4,
    "n_group": 2, "topk_group": 1, "num_experts_per_tok": 2, "n_shared_experts": 1, "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.7, "norm_topk_prob": True, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
    "rope_interleave": True, "hidden_act": "silu", "max_position_embeddings": 32, "num_nextn_predict_layers": 0,
}  # fmt: skip
DEEPSEEK_FAMILY = family_for_config(DEEPSEEK)


def write_deepseek(directory: Path) -> Path:
    """A Hugging Face directory with random weights."""
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(DEEPSEEK))
    rng = np.random.default_rng(0)
    weights = {
        p.name: (rng.standard_normal(p.shape) * 0.1 + ("norm" in p.name)).astype(np.float32)
        for p in DEEPSEEK_FAMILY.parameters(DEEPSEEK)
    }
    save_file(weights, directory / "model.safetensors", {"format": "pt"})
    return directory


def make_trainer(model: Path) -> Trainer:
    """A trainer of one process, not compiled."""
    return Trainer(AutoModelForCausalLM.from_pretrained(model), Mesh.single(), OptimizerConfig(), jit=False)


def step(trainer: Trainer, data: Path, position: int = 0) -> float:
    """One step; gives the loss."""
    return trainer.step(TrainingLoader(data, seed=0, micro_batch_size=4, position=position).next_step(), 0.01).loss


def make_saver(run: Path, family: str = "llama", **section: int | bool) -> Saver:
    """A saver of one process; `section` is of the configuration."""
    values = {"asynchronous": False, **section}
    return Saver(run, 0, ParallelLayout(), family, CheckpointConfig(**values), lambda flag: flag)  # type: ignore[arg-type]


def begin(saver: Saver, number: int, trainer: Trainer) -> None:
    """Begins a save with the state a run would have."""
    is_copy = saver.config.asynchronous
    contents = checkpoint.contents(trainer, checkpoint.side_files(trainer), copy=is_copy)
    training = {"step": number, "tokens": 5, "optimizer_step": trainer.optimizer.step, "config": {}}
    saver.begin(number, contents, training, time.perf_counter())


def save(run: Path, number: int, trainer: Trainer, **section: int | bool) -> Path:
    """A whole save."""
    saver = make_saver(run, trainer.model.place.family_name, **section)
    begin(saver, number, trainer)
    (saved,) = saver.finish()
    return saved.directory


def steps(run: Path) -> list[int]:
    """Of the complete checkpoints."""
    return [number for number, _ in complete_checkpoints(run)]
