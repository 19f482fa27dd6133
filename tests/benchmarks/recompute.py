"""What recomputing costs and saves: step time and memory of a Llama under each policy, one process for each.

    python tests/benchmarks/recompute.py [--steps 4] [--batch 8] [--length 512] [--compute fp32] [--json FILE]

Memory is what a step adds to the process: its highest resident set (VmHWM, reset before) less the resident set before
the first step, with weights, accumulators and optimizer states in place. Compiled; the first step, which compiles, is
left out of the time. All policies must give the same losses.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from mappings.parallel_options import RECOMPUTE

CONFIG = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 4096, "hidden_size": 256,
    "intermediate_size": 688, "num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 4,
    "hidden_act": "silu", "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
    "tie_word_embeddings": False, "eos_token_id": 1, "pad_token_id": 0,
}  # fmt: skip
AGREE = 1e-5
"""How far losses of policies may lie apart, relatively: the same numbers, added in another order."""


def make(directory: Path) -> None:
    """Writes a model with random weights."""
    import numpy as np
    from safetensors.numpy import save_file

    from mappings.families import family_for_config

    rng = np.random.default_rng(0)
    (directory / "config.json").write_text(json.dumps(CONFIG))
    parameters = family_for_config(CONFIG).parameters(CONFIG)
    weights = {
        p.name: (rng.standard_normal(p.shape) * 0.02 + ("norm" in p.name)).astype(np.float32) for p in parameters
    }
    save_file(weights, directory / "model.safetensors", {"format": "pt"})


def resident(field: str) -> float:
    """MiB of this process: `VmRSS` or `VmHWM`."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1]) / 1024


def work(directory: Path, policy: str, steps: int, batch: int, length: int, compute: Any) -> dict[str, Any]:
    """Steps of one policy, in this process."""
    import numpy as np

    from mappings.parallel_options import ParallelOptions
    from ms_models import AutoModelForCausalLM
    from ms_models.parallel.mesh import Mesh
    from ms_models.train.config import OptimizerConfig, PrecisionConfig
    from ms_models.train.host_thread import wait_quietly
    from ms_models.train.step import Trainer

    wait_quietly()
    options = ParallelOptions(recompute=policy)
    model = AutoModelForCausalLM.from_pretrained(directory, options=options, compute=compute)
    precision = PrecisionConfig(compute=compute, loss_scale=1024.0)
    trainer = Trainer(model, Mesh.single(), OptimizerConfig(lr=1e-4), jit=True, precision=precision)
    ids = np.random.default_rng(1).integers(0, CONFIG["vocab_size"], (batch, length)).astype(np.int32)
    rows = {"input_ids": ids, "labels": ids, "attention_mask": np.ones_like(ids)}
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the highest so far is forgotten
    seconds, losses = [], []
    for _ in range(steps + 1):
        begin = time.perf_counter()
        losses.append(trainer.step([rows], 1e-4).loss)
        seconds.append(time.perf_counter() - begin)
    return {
        "step_s": median(seconds[1:]), "first_s": seconds[0], "mib": resident("VmHWM") - before, "losses": losses,
    }  # fmt: skip


def main() -> None:
    """Prints a table, in the form of `docs/step.md`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--compute", default="fp32", choices=("fp32", "fp16"))
    parser.add_argument("--json", type=Path, help="write the figures here, too")
    parser.add_argument("--one", nargs=2, metavar=("POLICY", "MODEL"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    sizes = options.steps, options.batch, options.length
    if options.one:
        sys.stdout.write(f"{json.dumps(work(Path(options.one[1]), options.one[0], *sizes, options.compute))}\n")
        return
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder))
        for policy in RECOMPUTE:
            command = [sys.executable, __file__, "--one", policy, folder, "--compute", options.compute]
            command += [
                text for pair in zip(("--steps", "--batch", "--length"), map(str, sizes), strict=True) for text in pair
            ]
            output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            found[policy] = json.loads(output.splitlines()[-1])
    base = found["none"]
    for figures in found.values():
        pairs = zip(figures["losses"], base["losses"], strict=True)
        assert all(abs(a / b - 1) < (AGREE if options.compute == "fp32" else 1e-2) for a, b in pairs), found
    print("| recompute | step s | of none | step memory MiB | of none | first step s |\n|---|---|---|---|---|---|")
    for policy, one in found.items():
        print(
            f"| {policy} | {one['step_s']:.2f} | {one['step_s'] / base['step_s']:.2f} | {one['mib']:.0f} | "
            f"{one['mib'] / base['mib']:.2f} | {one['first_s']:.1f} |"
        )
    if options.json:
        options.json.write_text(json.dumps(found, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
