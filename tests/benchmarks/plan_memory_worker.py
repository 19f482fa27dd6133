"""Measures what a rank of the runner holds and how its peak grows with the micro-batch; see `plan_memory.py`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import psutil

SMALL, LARGE = 2, 6
"""Micro-batches whose peaks are compared: what they do not share is activations."""


def peak() -> int:
    """Most resident bytes since the last `reset`."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024


def reset() -> None:
    """Starts looking for a peak anew."""
    Path("/proc/self/clear_refs").write_text("5")


def measure(case: dict[str, Any]) -> dict[str, Any]:
    """Elements that the trainer holds, and the peaks of steps with either micro-batch."""
    from mappings.families import family_for_config
    from mappings.layout import ParallelLayout
    from mappings.parallel_options import ParallelOptions
    from ms_models.families.llama import LlamaForCausalLM
    from ms_models.parallel.mesh import Mesh
    from ms_models.parallel.place import Place
    from ms_models.train.config import OptimizerConfig
    from ms_models.train.step import Trainer

    config, layout = case["config"], ParallelLayout(**case["layout"])
    mesh, family = Mesh.from_environment(layout), family_for_config(config)
    place = Place(mesh, family, config, ParallelOptions(**case["options"]))
    model = LlamaForCausalLM(LlamaForCausalLM.read_config(config, family), place)
    model.set_train()
    trainer = Trainer(model, mesh, OptimizerConfig(), jit=False)
    base = psutil.Process().memory_info().rss
    result = {
        "weights": sum(parameter.size for parameter in model.trainable_params()),
        "gradients": sum(accumulator.size for accumulator in trainer.gradients.accumulators),
        "state": sum(buffer.size for buffer in trainer.optimizer.flat["exp_avg"]),
        "states": len(trainer.optimizer.flat),
        "peaks": [],
    }
    for micro in (SMALL, LARGE):
        reset()
        for step in range(2):
            rng = np.random.default_rng(step)
            ids = rng.integers(0, config["vocab_size"], (micro, case["length"])).astype(np.int32)
            batch = {"input_ids": ids, "attention_mask": np.ones_like(ids), "labels": ids}
            trainer.step([batch] * case["micro_batches"], 1e-3)
        result["peaks"].append(peak() - base)
    return result


if __name__ == "__main__":
    chosen = json.loads(sys.argv[1])
    if "ranks" in chosen:
        sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "multi_process"))
        from harness import report

        report(lambda: measure(chosen))
    else:
        print("RESULT", json.dumps(measure(chosen)))
