"""Trains step by step on request: `python step_worker.py FOLDER SIZE CORES`; each line on stdin asks for one step.

Answers with one JSON line: seconds of the step, on the clock and of all its threads, and resident memory. FOLDER
holds `step_program.py` and what it imports.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from pathlib import Path

import psutil


def main(folder: Path, size: str, cores: int) -> None:
    process = psutil.Process()
    process.cpu_affinity(list(range(cores)))
    sys.path.insert(0, str(folder))
    program = importlib.import_module("step_program")
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(cores)
    steps = program.steps(size)
    for _ in sys.stdin:
        begin, worked = time.perf_counter(), time.process_time()
        loss = next(steps)  # which is read back, so the step has ended
        seconds = time.perf_counter() - begin
        worked = time.process_time() - worked
        print(
            json.dumps({"s": seconds, "cpu_s": worked, "loss": loss, "mib": process.memory_info().rss / 2**20}),
            flush=True,
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
