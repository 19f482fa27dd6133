"""What all planted faults have in common, and the program that captures ms_models with each of them.

`python plants.py MODULE JOB OUT`: a folder per fault of the module, all made in one process. The module has `PLANTS`,
what must be found; `BENIGN`, which must pass everywhere; and `replacements()`, how each is planted. Faults of stage F
and harmless changes are captured with the values of OUT/float32 forced on every module, too (`forced`), those of stage
G with the gradients of OUT/backward (`backward`).
"""

from __future__ import annotations

import importlib
import os
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REFERENCE, FORCED, BACKWARD = "float32", "forced", "backward"
THE_MODEL = ""
"""What is guilty where the model's own code is, between its modules."""
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
    guilty: str | tuple[str, ...] | None = None
    """Modules that alone are wrong, of like ones the first, and no others may be named; `place` by default."""

    def culprits(self) -> tuple[str, ...]:
        """The modules to be named, in the order of naming."""
        named = self.place if self.guilty is None else self.guilty
        return (named,) if isinstance(named, str) else named


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

    from migrate.parity.backward.mindspore_side import main as backward
    from migrate.parity.capture_mindspore import main as capture
    from migrate.parity.forced_mindspore import main as forced
    from migrate.parity.job import Job

    found: Any = importlib.import_module(module)
    asked = Job.read(job).stages
    table: dict[str, Replacement | list[Replacement]] = found.replacements()
    for name in (*found.BENIGN, *found.PLANTS):
        folder = out / name
        folder.mkdir(parents=True)
        with ExitStack() as stack:
            faults = table[name]
            for where, attribute, value in faults if isinstance(faults, list) else [faults]:
                stack.enter_context(planted(where, attribute, value))
            capture(job, folder)
            stages = ("F", "G") if name in found.BENIGN else (found.PLANTS[name].stage,)
            if "F" in stages and "F" in asked:
                (folder / FORCED).mkdir()
                forced(job, out / REFERENCE, folder / FORCED)
            if "G" in stages and "G" in asked:
                (folder / BACKWARD).mkdir()
                backward(job, out / BACKWARD, folder / BACKWARD)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
