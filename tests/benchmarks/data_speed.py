"""Speed of `msmigrate data` and of the loader, against the usual ways, in tokens a second.

    OMP_NUM_THREADS=1 python tests/benchmarks/data_speed.py [--megabytes 24] [--seq-length 1024] [--repeat 3]

The corpus is JSON lines made of the source of Python's standard library, the tokenizer a byte-level BPE of 8,000 tokens
trained on it. Every way runs in a process of its own; the median is told, and the CPU
time of all processes, which a busy machine changes less. Tokens count without end tokens.

* one by one: the tokenizer is called once a document, rows are concatenated and written with MindRecord's `FileWriter`
  as they come: what a first script does.
* encoding only: the same calls without rows.
* datasets.map: `datasets.Dataset.map(batched=True, num_proc=N)` with the same tokenizer, which makes an Arrow cache of
  ids, neither packed nor in MindRecord; where `datasets` is installed.
* msmigrate data: with N processes, all the way to hashed shards. Imports and the start of processes count.
* loader: rows of the shards in training order, read when asked for and read ahead by a thread.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
WORKER = Path(__file__).with_name("data_worker.py")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=24)
    parser.add_argument("--seq-length", type=int, default=1024)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        home = Path(directory)
        made = _run(home, "corpus", str(options.megabytes))
        print(f"corpus: {made['bytes'] / 1e6:.1f} MB, {made['documents']:,} documents, {made['tokens']:,} tokens\n")
        ways = [("encoding only, one by one", ["encode"]), ("one by one, to MindRecord", ["simple"])]
        if importlib.util.find_spec("datasets") is not None:
            ways += [(f"datasets.map, {n} processes", ["datasets", str(n)]) for n in options.processes]
        ways += [(f"msmigrate data, {n} processes", ["prepare", str(n)]) for n in options.processes]
        ways += [("loader, when asked for", ["load", "0"]), ("loader, read ahead", ["load", "2"])]
        print("| way | seconds | CPU seconds | tokens/s | against one by one |\n|---|---|---|---|---|")
        base = None
        for title, arguments in ways:
            found = [_run(home, *arguments, str(options.seq_length)) for _ in range(options.repeat)]
            seconds = statistics.median(one["seconds"] for one in found)
            speed = found[0]["tokens"] / seconds
            base = speed if arguments[0] == "simple" else base
            share = f"{speed / base:.1f}" if base and arguments[0] != "load" else ""
            cpu = [one["cpu"] for one in found if "cpu" in one]
            cpu_text = f"{statistics.median(cpu):.1f}" if cpu else ""
            print(f"| {title} | {seconds:.1f} | {cpu_text} | {speed:,.0f} | {share} |", flush=True)


def _run(home: Path, *arguments: str) -> dict[str, float]:
    command = [sys.executable, str(WORKER), str(home), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, cwd=ROOT, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments)}:\n{done.stderr}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


if __name__ == "__main__":
    main()
