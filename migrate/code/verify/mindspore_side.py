"""The candidate: the converted repository, on MindSpore. `python -m migrate.code.verify.mindspore_side JOB`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from migrate.code.verify.job import Job
from migrate.code.verify.module_graphs import compare_as_graph
from migrate.code.verify.side import run
from migrate.sides.mindspore_framework import MindSpore
from migrate.sides.recipes import Recipe


def main(job: Job) -> None:
    """Runs the job, and what its recipes say of graphs."""
    side = MindSpore()

    def as_graph(recipe: Recipe, module: Any, folder: Path) -> bool:
        return not recipe.compiled or compare_as_graph(side, job, recipe, module, folder)

    run(side, job, as_graph if job.compiled else None)


if __name__ == "__main__":
    main(Job.read(Path(sys.argv[1])))
