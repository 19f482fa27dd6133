"""A process that kills conversions at every step and resumes them; started by test_resume.py.

Each conversion runs in a fork that counts the calls that change the disk and kills itself (SIGKILL) at one of them. A
second fork resumes. The parent compares what came out with an uninterrupted conversion.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from pathlib import Path

from mappings.errors import UserError
from mappings.layout import ParallelLayout
from migrate.weights.command import convert
from migrate.weights.engine import execute, plan

CALLS = ("pwrite", "copy_file_range", "fsync", "write", "ftruncate", "rename", "unlink", "rmdir", "mkdir", "open")
LAYOUT = ParallelLayout(tp=2)


def files_of(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def counted(limit: int | None) -> list[int]:
    """Wraps the calls: the process is killed before call number `limit`."""
    seen = [0]

    def wrap(name: str):
        real = getattr(os, name)

        def call(*arguments, **options):
            if name == "open" and not arguments[1] & os.O_CREAT:
                return real(*arguments, **options)
            seen[0] += 1
            if seen[0] == limit:
                os.kill(os.getpid(), signal.SIGKILL)
            # The page cache outlives a killed process, so waiting for the disk would only cost time here.
            return None if name == "fsync" else real(*arguments, **options)

        setattr(os, name, call)

    for name in CALLS:
        wrap(name)
    return seen


def forked(work) -> tuple[int, object]:
    """Exit status of a fork, and what its function returned."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(reader)
        try:
            result = work()
            with os.fdopen(writer, "w") as stream:
                json.dump(result, stream)
            os._exit(0)
        except UserError as error:
            with os.fdopen(writer, "w") as stream:
                json.dump(str(error), stream)
            os._exit(2)
        finally:
            os._exit(9)
    os.close(writer)
    with os.fdopen(reader) as stream:
        text = stream.read()
    return os.waitpid(child, 0)[1], json.loads(text) if text else None


def run(source: Path, out: Path, limit: int | None, *, force: bool, resume: bool = False):
    seen = counted(limit)
    report = convert(source, out, layout=LAYOUT, force=force, resume=resume, threads=1)
    return [seen[0], report.exit_code, report.facts.get("batches_resumed", 0)]


def main(source: Path, other: Path, work: Path, points: int) -> None:
    # Many small batches, each made safe at once.
    plan.BATCH, execute.SYNC_BYTES = 2000, 1
    expected = work / "expected"
    convert(source, expected, layout=LAYOUT, threads=1)
    convert(other, work / "old", layout=LAYOUT, threads=1)
    new, old = files_of(expected), files_of(work / "old")
    out = work / "out"
    results = []
    for force in (False, True):
        if force:
            shutil.copytree(work / "old", out)
        status, value = forked(lambda force=force: run(source, out, None, force=force))
        total = value[0]
        # Spread over the copying, and every call of the end: small files, publishing, removing the old output.
        tail = range(total - (20 if force else 10), total + 1)
        for limit in sorted({1 + n * total // points for n in range(points)} | set(tail)):
            shutil.rmtree(out, ignore_errors=True)
            if force:
                shutil.copytree(work / "old", out)
            killed, _ = forked(lambda force=force, limit=limit: run(source, out, limit, force=force))
            there = files_of(out) if out.exists() else None
            moved = work / ".out.old"
            kept = not force or there in (old, new) or (moved.exists() and files_of(moved) == old)
            whole = there is None or there in (old, new)
            status, value = forked(lambda force=force: run(source, out, None, force=force, resume=True))
            traces = sorted(path.name for path in work.iterdir())
            results.append({
                "force": force, "limit": limit, "total": total, "killed": killed, "kept": kept, "whole": whole,
                "status": status, "value": value, "same": out.exists() and files_of(out) == new, "traces": traces,
            })  # fmt: skip
        shutil.rmtree(out)
    print(json.dumps(results))


if __name__ == "__main__":
    main(*(Path(argument) for argument in sys.argv[1:4]), int(sys.argv[4]))
