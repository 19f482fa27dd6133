"""`--verify`: compile every converted file and import every converted module, in a process of its own.

This is the one place where code of the repository runs, and only when the user asked for it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from migrate.code.project import Project, SourceFile
from migrate.progress import Tracker, quiet

IMPORT_TIMEOUT_S = 120
_CHILD = """
import importlib, json, sys, traceback
for name in sys.argv[1:]:
    print(json.dumps({"module": name, "state": "started"}), flush=True)
    try:
        importlib.import_module(name)
        result = {"module": name, "state": "ok"}
    except BaseException as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        result = {"module": name, "state": "failed", "reason": f"{type(error).__name__}: {error}", "line": last.lineno}
    print(json.dumps(result), flush=True)
"""


@dataclass(frozen=True)
class Imported:
    """Outcome for one module; `reason` is None when it could be imported."""

    path: str
    reason: str | None


def import_modules(
    project: Project, out: Path, sources: Sequence[SourceFile], *, track: Tracker = quiet
) -> list[Imported]:
    """Import modules of the output; a module that hangs or kills its process is reported and the rest goes on."""
    results: list[Imported] = []
    by_root: dict[Path, list[SourceFile]] = {}
    for source in sources:
        by_root.setdefault(out / project.import_root(source), []).append(source)
    with track("importing", len(sources)) as advance:
        for root, group in by_root.items():
            pending = {_name(project, source): str(source.path) for source in group}
            while pending:
                for module, reason in _run(root, list(pending)):
                    results.append(Imported(pending.pop(module), reason))
                    advance(1)
    return results


def _name(project: Project, source: SourceFile) -> str:
    depth = len(project.import_root(source).parts)
    return ".".join(source.module.split(".")[depth:]) or source.path.parent.name


def _run(root: Path, modules: list[str]) -> list[tuple[str, str | None]]:
    """Outcomes up to the first module that ends the process; never empty.

    The time is for one module: of several in one process, the one that ran out of it gets a process of its own.
    """
    path = os.pathsep.join(filter(None, (str(root), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", _CHILD, *modules]
    ran_out = False
    try:
        done = subprocess.run(
            command, cwd=root, env=environment, capture_output=True, text=True, timeout=IMPORT_TIMEOUT_S, check=False
        )
        output, ending = done.stdout, f"the process ended with code {done.returncode}"
    except subprocess.TimeoutExpired as error:
        output = error.stdout.decode() if isinstance(error.stdout, bytes) else error.stdout or ""
        ending = f"no end after {IMPORT_TIMEOUT_S} s; does the file run something when it is imported?"
        ran_out = True
    outcomes: dict[str, str | None] = {}
    for line in output.splitlines():
        try:
            record = json.loads(line)
            name, state = record["module"], record["state"]
        except (ValueError, KeyError, TypeError):
            continue  # the module printed something itself
        outcomes[name] = ending if state == "started" else record.get("reason")
    if ran_out and len(outcomes) > 1:
        outcomes.popitem()
    return list(outcomes.items()) or [(modules[0], ending)]
