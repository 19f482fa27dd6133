"""Curves of one training in one process, in eight (dp2 tp2 pp2), and in PyTorch, against what rounding alone does.

    python tests/curves/run.py --out DIR [--steps 100] [--csv docs/curves/qwen2.csv]

The band: the run in one process is repeated with its global batch dealt out to other micro-batches, which changes
nothing but the order of sums. Everything else has to stay within a multiple of that distance
(`msmigrate parity curve --noise`). Takes ten minutes on two cores; what is in DIR already is not run again.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
from pathlib import Path

HERE, ROOT = Path(__file__).parent, Path(__file__).parents[2]
RUNS = {
    "one": {"train.micro_batch_size": 2, "train.accumulation": 4},
    "one_again": {"train.micro_batch_size": 4, "train.accumulation": 2},
    "one_in_eighths": {"train.micro_batch_size": 1, "train.accumulation": 8},
    "dp2_tp2_pp2": {
        "train.micro_batch_size": 1, "train.accumulation": 4, "layout.dp": 2, "layout.tp": 2, "layout.pp": 2,
    },
}  # fmt: skip
NOISE = ("one_again", "one_in_eighths")
TORCH = "pytorch"
KEYS = ("loss", "grad_norm")
# Kernels of two frameworks round differently: MindSpore's exp on CPU is 5e-6 off. The loss averages it away, the norm
# of the gradient does not, and repetitions within one framework do not show it.
FLOORS = {("pytorch", "grad_norm"): "1e-4"}
CONFIG = """\
model: {{path: {model}}}
data: {{path: {data}}}
train: {{steps: {steps}, micro_batch_size: 2, accumulation: 4}}
optimizer: {{lr: 1.0e-3, weight_decay: 0.1, clip_norm: 1.0}}
schedule: {{kind: cosine, warmup_steps: 10}}
output: {{directory: {out}}}
"""


def main() -> int:
    """Runs what is missing, compares, writes the CSV; 1 where a curve leaves the band."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--csv", type=Path)
    args = parser.parse_args()
    out: Path = args.out
    out.mkdir(parents=True, exist_ok=True)
    model, data = out / "hf", out / "data"
    if not model.is_dir():
        call("python", ROOT / "samples/hf_checkpoint/make.py", "qwen2", model)
    if not data.is_dir():
        size = ("--seq-length", "128", "--max-bytes", "4000000")
        call("msmigrate", "data", "stdlib", "--tokenizer", model, *size, "-o", data)
    config = out / "run.yaml"
    config.write_text(CONFIG.format(model=model, data=data, steps=args.steps, out=out / "one"), encoding="utf-8")
    curves = {name: train(config, out, name, args.steps) for name in RUNS}
    curves[TORCH] = out / "pytorch.jsonl"
    if not is_complete(curves[TORCH], args.steps):
        call("python", HERE / "torch_run.py", config, curves[TORCH])
    if args.csv is not None:
        write_csv(args.csv, curves, args.steps)
    noise = [part for name in NOISE for part in ("--noise", curves[name])]
    ends = []
    for name in ("dp2_tp2_pp2", TORCH):
        for key in KEYS:
            print(f"--- {name} against one process, {key}", flush=True)
            floor = ("--first-rtol", FLOORS.get((name, key), "1e-6"))
            command = ["msmigrate", "parity", "curve", curves["one"], curves[name], "--key", key, *floor, *noise]
            ends.append(subprocess.run([str(word) for word in command], env=environment(), check=False).returncode)
    return max(ends)


def train(config: Path, out: Path, name: str, steps: int) -> Path:
    """The metrics of a run, which is made unless it is there."""
    metrics = out / name / "metrics.jsonl"
    if not is_complete(metrics, steps):
        changes = {**RUNS[name], "output.directory": out / name}
        call("msmigrate", "train", config, *(word for k, v in changes.items() for word in ("--set", f"{k}={v}")))
    return metrics


def is_complete(path: Path, steps: int) -> bool:
    """Whether every step is there."""
    return path.is_file() and len(steps_of(path)) == steps


def steps_of(path: Path) -> dict[int, dict[str, float]]:
    """Records of steps, by step."""
    records = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return {record["step"]: record for record in records if "loss" in record}


def write_csv(path: Path, curves: dict[str, Path], steps: int) -> None:
    """One row per step, every digit."""
    path.parent.mkdir(parents=True, exist_ok=True)
    found = {name: steps_of(curve) for name, curve in curves.items()}
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["step", *(f"{name} {key}" for name in found for key in KEYS)])
        for step in range(1, steps + 1):
            writer.writerow([step, *(found[name][step][key] for name in found for key in KEYS)])


def call(*words: str | Path) -> None:
    """Runs a command of this environment to its end."""
    print("$", *words, flush=True)
    subprocess.run([str(word) for word in words], env=environment(), check=True)


def environment() -> dict[str, str]:
    """This interpreter's programs first."""
    return {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


if __name__ == "__main__":
    sys.exit(main())
