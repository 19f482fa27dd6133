"""One framework's side of the projects, all in one process: `python project_side.py torch|mindspore JOBS.json`.

For each job the modules of its recipes are run as `migrate.code.verify` runs them, then the project's own `train.py` as
a user would start it. What ends with an error is written down, and the next project goes on.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import traceback
from pathlib import Path
from typing import Any

from migrate.code.verify.job import Job
from migrate.code.verify.side import run
from migrate.sides.framework import Framework


def framework(name: str) -> Framework:
    if name == "torch":
        from migrate.sides.torch_framework import Torch

        return Torch()
    import mindspore

    from migrate.sides.mindspore_framework import MindSpore

    mindspore.runtime.launch_blocking()
    return MindSpore()


def forget(root: Path) -> None:
    """The projects have modules of the same names."""
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(f"{root}{os.sep}"):
            del sys.modules[name]


def train(root: Path, arguments: list[str]) -> None:
    os.chdir(root)
    sys.path.insert(0, str(root))
    sys.argv = ["train.py", *arguments]
    runpy.run_path(str(root / "train.py"), run_name="__main__")


def main(name: str, jobs: list[dict[str, Any]]) -> None:
    side = framework(name)
    for entry in jobs:
        root, path = Path(entry["root"]), list(sys.path)
        errors: dict[str, str] = {}
        for part in ("modules", "train"):
            try:
                if part == "modules":
                    run(side, Job.read(Path(entry["job"])))
                else:
                    train(root, entry["arguments"])
            except (Exception, SystemExit):  # noqa: BLE001  (written down, the test judges)
                errors[part] = traceback.format_exc()
            sys.path[:] = path
            forget(root)
        Path(entry["errors"]).write_text(json.dumps(errors), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1], json.loads(Path(sys.argv[2]).read_text(encoding="utf-8")))
