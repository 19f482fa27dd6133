"""Time of one generated token of converted projects, compiled and eager, against PyTorch on the same cores.

    python tests/benchmarks/generate_time.py [--size large] [--cores 1] [--steps 5] [PROJECT ...]

As `step_time.py`, where a step is a whole greedy generation of a prompt of 8 and TOKENS more tokens, divided by TOKENS.
A project whose generation stays eager has the same figures on both sides.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from step_time import measure

PROGRAMS = Path(__file__).parent / "generate_programs"
PROJECTS = ("kv_cache", "torch_gpt")
TOKENS = 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("projects", nargs="*", default=list(PROJECTS), metavar="PROJECT")
    parser.add_argument("--size", default="large", choices=("small", "large"))
    parser.add_argument("--cores", type=int, default=1)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write the figures here, too")
    options = parser.parse_args()
    rows = []
    titles = ["project", "size", "compiled steps", "torch ms", "eager ms", "compiled ms", "CPU ms", "compiled / eager"]
    print(f"| {' | '.join(titles)} |")
    print("|---" * len(titles) + "|")
    for name in options.projects:
        row = measure(name, options.size, options.cores, options.steps, programs=PROGRAMS)
        rows.append(row)
        ms = {side: value / TOKENS for side, value in row["step_ms"].items()}
        cpu = {side: value / TOKENS for side, value in row["cpu_ms"].items()}
        switches = row["switches"]["generation step"]
        print(
            f"| {name} | {options.size} | {switches} | {ms['torch']:.1f} | {ms['eager']:.1f} | {ms['compiled']:.1f} | "
            f"{cpu['torch']:.1f} / {cpu['eager']:.1f} / {cpu['compiled']:.1f} | {ms['compiled'] / ms['eager']:.2f} |",
            flush=True,
        )
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
