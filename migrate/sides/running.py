"""Runs a side in processes of its own, through a list of recipes, any of which may end its process."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from mappings.errors import UserError
from migrate.processes import run
from migrate.sides.recipes import Recipe


def run_side(
    name: str,
    command: Sequence[str],
    out: Path,
    total: int,
    *,
    timeout_s: float,
    path: Sequence[Path] = (),
    advance: Callable[[int], None] = lambda _: None,
) -> dict[int, str]:
    """Runs a side to the end of its list, again after each death.

    Args:
        name: of the side, for messages.
        command: starts the process, which makes a directory `out/<number>` when it begins a recipe and leaves out the
            recipes that have one.
        out: what the side writes to.
        total: number of recipes.
        timeout_s: seconds for each process.
        path: directories at the front of the search path of the process.
        advance: told how many recipes were begun.

    Returns:
        Why recipes that ended their process did, by number.

    Raises:
        UserError: the process ends before it begins a recipe.
    """
    search = os.pathsep.join(
        filter(None, (*map(str, path), str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH")))
    )
    ended: dict[int, str] = {}
    while True:
        before = _started(out)
        outcome = run(command, timeout_s, {"PYTHONPATH": search})
        now = _started(out)
        advance(now - before)
        if outcome.returncode == 0:
            return ended
        if now == before:
            raise UserError(f"{name} cannot be run for the comparison: {outcome.reason()}")
        ended[now - 1] = outcome.reason()
        if now == total:
            return ended


def begin(recipes: Sequence[Recipe], out: Path) -> Iterator[tuple[int, Recipe, Path]]:
    """In the process of a side: (number, recipe, its directory) of what is still to be done.

    The directory of each is made when it begins, so that a death is charged to it.
    """
    for number, recipe in enumerate(recipes):
        folder = out / str(number)
        if folder.exists():
            continue  # an earlier process got this far
        folder.mkdir(parents=True)
        yield number, recipe, folder


def _started(out: Path) -> int:
    return sum(entry.is_dir() for entry in out.iterdir())
