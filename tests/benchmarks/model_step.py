"""Step time and memory of a 30M-parameter Llama: compiled and eager against transformers in torch, on the same cores.

    python tests/benchmarks/model_step.py [--cores 1] [--steps 10] [--sides torch jit pynative] [--json FILE]

A step is what training does: forward, backward, the norm of all gradients, clipping, the update of AdamW. One process
for each side starts from the same weights; they take steps in turn on the same batches, so that what else the machine
does falls on all alike. Figures are medians, and medians of the paired ratios; those of CPU time hold on a busy
machine, too. The first steps, which compile, are given apart. The losses of all sides have to agree.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

WORKER = Path(__file__).with_name("model_step_worker.py")
SIDES = ("torch", "jit", "pynative")
WARM_UP = 2
AGREE = 1e-3
"""How far losses may lie apart, relatively: AdamW's first steps go by the signs of gradients, which rounding decides
where they are tiny."""


class Side:
    """A process that steps when it is told to."""

    def __init__(self, side: str, model: Path, cores: int) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": str(cores), "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, str(WORKER), side, str(model), str(cores)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def step(self) -> dict[str, float]:
        """Figures of one step."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        for line in self.process.stdout:
            if line.startswith('{"s"'):
                return dict(json.loads(line))
        raise SystemExit(f"{self.process.args}: ended with code {self.process.wait()}")

    def close(self) -> None:
        """Ends the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def measure(names: list[str], cores: int, steps: int) -> dict[str, Any]:
    """Milliseconds and MiB of each side, and ratios to torch of steps taken in turn."""
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model"
        subprocess.run([sys.executable, str(WORKER), "make", str(model), str(cores)], check=True)
        sides = {name: Side(name, model, cores) for name in names}
        try:
            first = {name: [side.step() for _ in range(WARM_UP)] for name, side in sides.items()}
            rounds = [{name: side.step() for name, side in sides.items()} for _ in range(steps)]
        finally:
            for side in sides.values():
                side.close()
    for figures in (*zip(*first.values(), strict=True), *(tuple(r.values()) for r in rounds)):
        losses = [figure["loss"] for figure in figures]
        assert max(losses) - min(losses) < AGREE * min(losses), f"the sides compute different things: {losses}"
    return {
        "cores": cores,
        "first_s": {name: sum(step["s"] for step in taken) for name, taken in first.items()},
        "ms": {name: 1e3 * median(r[name]["s"] for r in rounds) for name in names},
        "cpu_ms": {name: 1e3 * median(r[name]["cpu_s"] for r in rounds) for name in names},
        "of_torch": {name: median(r[name]["s"] / r[names[0]]["s"] for r in rounds) for name in names},
        "cpu_of_torch": {name: median(r[name]["cpu_s"] / r[names[0]]["cpu_s"] for r in rounds) for name in names},
        "peak_mib": {name: rounds[-1][name]["peak_mib"] for name in names},
    }


def main() -> None:
    """Prints a table, in the form of `docs/model-step.md`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cores", type=int, default=1)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument(
        "--sides", nargs="+", default=list(SIDES), choices=SIDES, help="the first is what others are compared with"
    )
    parser.add_argument("--json", type=Path, help="write the figures here, too")
    options = parser.parse_args()
    found = measure(options.sides, options.cores, options.steps)
    print("| side | ms | of torch | CPU ms | of torch | peak MiB | first steps s |\n|---|---|---|---|---|---|---|")
    for name in options.sides:
        print(
            f"| {name} | {found['ms'][name]:.0f} | {found['of_torch'][name]:.2f} | {found['cpu_ms'][name]:.0f} | "
            f"{found['cpu_of_torch'][name]:.2f} | {found['peak_mib'][name]:.0f} | {found['first_s'][name]:.1f} |"
        )
    if options.json:
        options.json.write_text(json.dumps(found, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
