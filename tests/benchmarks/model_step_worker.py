"""One side of `model_step.py`: `python model_step_worker.py SIDE MODEL CORES`; each line on stdin asks for one step.

Answers with one JSON line: seconds of the step on the clock and of all threads, the loss, and the highest resident
memory so far. SIDE `make` writes the model instead.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil

SIZES = {
    "vocab_size": 8192,
    "hidden_size": 512,
    "intermediate_size": 1376,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 512,
}
"""31.6 million parameters."""
BATCH, LENGTH = 4, 256
LEARNING_RATE, BETAS, EPS, DECAY, CLIP = 1e-4, (0.9, 0.95), 1e-8, 0.1, 1.0


def make(directory: Path) -> None:
    """Writes a model with random weights."""
    import torch
    import transformers

    torch.manual_seed(0)
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES)).save_pretrained(directory)


def torch_step(directory: Path, cores: int) -> Callable[[np.ndarray], float]:
    """transformers, with its fastest attention on CPU."""
    import torch
    import transformers

    torch.set_num_threads(cores)
    model = transformers.LlamaForCausalLM.from_pretrained(directory).train()
    matrices = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": DECAY}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=LEARNING_RATE, betas=BETAS, eps=EPS)

    def step(ids: np.ndarray) -> float:
        tokens = torch.from_numpy(ids)
        optimizer.zero_grad()
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        return float(loss.detach())

    return step


def mindspore_step(directory: Path, *, jit: bool) -> Callable[[np.ndarray], float]:
    """The trainer of ms_models."""
    from ms_models import AutoModelForCausalLM
    from ms_models.parallel.mesh import Mesh
    from ms_models.train.config import OptimizerConfig
    from ms_models.train.host_thread import wait_quietly
    from ms_models.train.step import Trainer

    wait_quietly()  # as `msmigrate train` does
    mesh = Mesh.single()
    config = OptimizerConfig(lr=LEARNING_RATE, betas=BETAS, eps=EPS, weight_decay=DECAY, clip_norm=CLIP)
    trainer = Trainer(AutoModelForCausalLM.from_pretrained(directory, mesh), mesh, config, jit=jit)

    def step(ids: np.ndarray) -> float:
        tokens = ids.astype(np.int32)
        batch = {"input_ids": tokens, "labels": tokens, "attention_mask": np.ones_like(tokens)}
        result = trainer.step([batch], LEARNING_RATE)
        assert result.is_finite
        return result.loss

    return step


def main(side: str, directory: Path, cores: int) -> None:
    """Steps on request."""
    if side == "make":
        make(directory)
        return
    process = psutil.Process()
    process.cpu_affinity(process.cpu_affinity()[:cores])
    step = torch_step(directory, cores) if side == "torch" else mindspore_step(directory, jit=side == "jit")
    batches = np.random.default_rng(0)
    for _ in sys.stdin:
        ids = batches.integers(0, SIZES["vocab_size"], (BATCH, LENGTH))
        begin, worked = time.perf_counter(), time.process_time()
        loss = step(ids)  # which is read back, and the update waited for
        if side != "torch":
            import mindspore

            mindspore.runtime.synchronize()
        seconds, worked = time.perf_counter() - begin, time.process_time() - worked
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps({"s": seconds, "cpu_s": worked, "loss": loss, "peak_mib": peak}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
