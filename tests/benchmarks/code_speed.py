"""Lines per second of the code converter, on one core and on all, beside what libcst alone takes to read and write.

    python tests/benchmarks/code_speed.py [REPOSITORY]

Without a repository: the model files of the installed transformers, the most used families first, up to 30,000 lines.
Every figure is the best of three runs; each run has a process of its own, which also gives its memory.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import shutil
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from importlib.util import find_spec
from pathlib import Path

LINES = 30_000
GOAL = 2_000
"""Lines per second on one core (issue 4)."""
RUNS = 3
FAMILIES = (
    "llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "gemma", "gemma2", "gemma3", "phi", "phi3", "gpt2",
    "gpt_neox", "gptj", "opt", "bloom", "falcon", "bert", "roberta", "t5", "olmo2", "starcoder2", "deepseek_v3", "glm4",
    "bart", "mamba", "electra", "deberta_v2", "xlm_roberta", "mpt", "cohere", "granite", "olmoe", "longformer",
)  # fmt: skip


def read_and_write(repository: Path) -> float:
    """Seconds in which libcst parses every file and gives its text back."""
    import libcst

    begin = time.perf_counter()
    for path in sorted(repository.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        assert libcst.parse_module(text).code == text
    return time.perf_counter() - begin


def scan(repository: Path) -> float:
    """Seconds of `msmigrate scan`: the table, the analysis, the conversion of every file in memory."""
    from migrate.code.command import scan

    begin = time.perf_counter()
    report = scan(repository)
    seconds = time.perf_counter() - begin
    crashed = [finding for finding in report.findings if finding.code == "M102"]
    assert not crashed, crashed
    return seconds


def _one_core(repository: Path) -> float:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    return scan(repository)


def _measured(job: Callable[[Path], float], repository: Path) -> tuple[float, float]:
    """Seconds, and the largest memory of the process in MiB."""
    return job(repository), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _copy_families(target: Path) -> None:
    found = find_spec("transformers")
    assert found is not None and found.origin is not None, "pip install transformers"
    models = Path(found.origin).parent / "models"
    lines = 0
    for family in FAMILIES:
        for path in sorted((models / family).glob("modeling_*.py")):
            if lines >= LINES:
                return
            lines += path.read_text(encoding="utf-8").count("\n")
            (target / family).mkdir(exist_ok=True)
            shutil.copy(path, target / family / path.name)


def main() -> None:
    """Runs the jobs in turn and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("repository", type=Path, nargs="?")
    repository: Path | None = parser.parse_args().repository
    jobs = {"libcst reads and writes": read_and_write, "msmigrate, one core": _one_core, "msmigrate": scan}
    best: dict[str, tuple[float, float]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        if repository is None:
            repository = Path(scratch)
            _copy_families(repository)
        lines = sum(path.read_text(encoding="utf-8").count("\n") for path in repository.rglob("*.py"))
        files = len(list(repository.rglob("*.py")))
        for _ in range(RUNS):
            for name, job in jobs.items():
                with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
                    result = pool.submit(_measured, job, repository).result()
                best[name] = min(best.get(name, result), result)
    print(f"{lines:,} lines in {files} files; best of {RUNS}")
    for name, (seconds, memory) in best.items():
        print(f"{name:24} {seconds:6.2f} s  {lines / seconds:8,.0f} lines/s  {memory:6.0f} MiB")
    ratio = best["msmigrate, one core"][0] / best["libcst reads and writes"][0]
    print(f"one core: {ratio:.1f} x the time of reading and writing; goal {GOAL:,} lines/s")


if __name__ == "__main__":
    main()
