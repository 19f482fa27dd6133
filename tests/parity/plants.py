"""What all planted faults have in common, and the program that captures ms_models with each of them.

`python plants.py MODULE JOB OUT`: a folder per fault of the module, all made in one process. The module has `PLANTS`,
what must be found; `BENIGN`, which must pass everywhere; and `replacements()`, how each is planted.
"""

from __future__ import annotations

import importlib
import os
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Replacement = tuple[Any, str, Any]
"""Where, which attribute, and by what."""


@dataclass(frozen=True)
class Plant:
    """A fault of a migration."""

    stage: str
    """The first that must fail."""
    place: str
    """Tensor or module that must be named first."""
    slip: str
    """How people come to make it."""


def command(module: str, job: Path, out: Path) -> list[str]:
    """The program's command line, for `migrate.processes.run`."""
    return [sys.executable, __file__, module, str(job), str(out)]


def environment() -> dict[str, str]:
    """Where the program finds `planting`."""
    shared = Path(__file__).parent.parent / "shared"
    return {"PYTHONPATH": os.pathsep.join([str(shared), os.environ.get("PYTHONPATH", "")])}


def main(module: str, job: Path, out: Path) -> None:
    """One capture per fault."""
    from planting import planted

    from migrate.parity.capture_mindspore import main as capture

    found: Any = importlib.import_module(module)
    table: dict[str, Replacement | list[Replacement]] = found.replacements()
    for name in (*found.BENIGN, *found.PLANTS):
        folder = out / name
        folder.mkdir(parents=True)
        with ExitStack() as stack:
            faults = table[name]
            for where, attribute, value in faults if isinstance(faults, list) else [faults]:
                stack.enter_context(planted(where, attribute, value))
            capture(job, folder)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
