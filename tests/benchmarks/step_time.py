"""Step time of converted projects, compiled and eager, against PyTorch on the same cores.

    python tests/benchmarks/step_time.py [--size large] [--cores 1] [--steps 10] [PROJECT ...]

Three processes, one for each, take steps in turn, so that what else the machine does falls on all alike; figures are
medians, and medians of the paired ratios; those of CPU time hold on a busy machine, too. The first steps (warm-up,
recording and compiling) are given apart.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

from migrate.code.command import convert
from migrate.code.execution import switched_on

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PROJECTS = {
    "torch_gpt": ROOT / "samples" / "torch_gpt",
    "bert_classifier": ROOT / "tests" / "code" / "projects" / "bert_classifier",
    "kv_cache": ROOT / "tests" / "code" / "projects" / "kv_cache",
}
WARM_UP = 3
"""Eager and watched, recorded and compiled, first run of the graph."""


def prepare(name: str, folder: Path, programs: Path) -> tuple[dict[str, Path], Counter[str]]:
    """The project in PyTorch, converted, and converted with the switches on; the number of these by kind of step."""
    source = folder / "torch"
    shutil.copytree(PROJECTS[name], source)
    shutil.copyfile(programs / f"{name}.py", source / "step_program.py")
    sides = {"torch": source, "eager": folder / "eager", "compiled": folder / "compiled"}
    for side in ("eager", "compiled"):
        report = convert(source, sides[side])
    switches: Counter[str] = Counter()
    for file in {step["file"] for step in report.facts["execution"]}:
        steps = [step for step in report.facts["execution"] if step["file"] == file and step["function_line"]]
        path = sides["compiled"] / file
        path.write_text(switched_on(path.read_text(encoding="utf-8"), [step["function_line"] for step in steps]))
        switches.update(step["kind"] for step in steps)
    return sides, switches


class Worker:
    """One side, which steps when it is told to."""

    def __init__(self, folder: Path, size: str, cores: int) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": str(cores), "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, str(HERE / "step_worker.py"), str(folder), size, str(cores)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=folder
        )

    def step(self) -> dict[str, Any]:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        for line in self.process.stdout:
            if line.startswith('{"s"'):
                return dict(json.loads(line))
        raise SystemExit(f"{self.process.args}: ended with code {self.process.wait()}")

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def measure(name: str, size: str, cores: int, steps: int, programs: Path = HERE / "step_programs") -> dict[str, Any]:
    """Seconds and MiB of each side, and ratios of steps taken in turn."""
    with tempfile.TemporaryDirectory() as folder:
        sides, switches = prepare(name, Path(folder), programs)
        workers = {side: Worker(path, size, cores) for side, path in sides.items()}
        try:
            first = {side: sum(worker.step()["s"] for _ in range(WARM_UP)) for side, worker in workers.items()}
            rounds = [{side: worker.step() for side, worker in workers.items()} for _ in range(steps)]
        finally:
            for worker in workers.values():
                worker.close()
    return {
        "project": name,
        "size": size,
        "cores": cores,
        "switches": switches,
        "first_steps_s": first,
        "step_ms": {side: 1e3 * median(r[side]["s"] for r in rounds) for side in workers},
        "cpu_ms": {side: 1e3 * median(r[side]["cpu_s"] for r in rounds) for side in workers},
        "of_torch": {side: median(r[side]["s"] / r["torch"]["s"] for r in rounds) for side in ("eager", "compiled")},
        "cpu_of_torch": {
            side: median(r[side]["cpu_s"] / r["torch"]["cpu_s"] for r in rounds) for side in ("eager", "compiled")
        },
        "mib": {side: rounds[-1][side]["mib"] for side in workers},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("projects", nargs="*", default=list(PROJECTS), metavar="PROJECT")
    parser.add_argument("--size", default="large", choices=("small", "large"))
    parser.add_argument("--cores", type=int, default=1)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--json", type=Path, help="write the figures here, too")
    options = parser.parse_args()
    rows = []
    titles = ["project", "size", "torch ms", "eager ms", "compiled ms", "eager / torch", "compiled / torch"]
    titles += ["the same in CPU time"]
    titles += ["first steps s", "MiB"]
    print(f"| {' | '.join(titles)} |")
    print("|---" * len(titles) + "|")
    for name in options.projects:
        row = measure(name, options.size, options.cores, options.steps)
        rows.append(row)
        ms, ratio, cpu, mib = row["step_ms"], row["of_torch"], row["cpu_of_torch"], row["mib"]
        print(
            f"| {name} | {options.size} | {ms['torch']:.0f} | {ms['eager']:.0f} | {ms['compiled']:.0f} | "
            f"{ratio['eager']:.2f} | {ratio['compiled']:.2f} | {cpu['eager']:.2f}, {cpu['compiled']:.2f} | "
            f"{row['first_steps_s']['compiled']:.1f} | "
            f"{mib['torch']:.0f} / {mib['eager']:.0f} / {mib['compiled']:.0f} |",
            flush=True,
        )
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
