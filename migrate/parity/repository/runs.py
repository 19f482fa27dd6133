"""The processes of a comparison of repositories, and the captures that they leave."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mappings.formats.weights_table import FILE as TABLE
from migrate.captures.store import MANIFEST, Capture
from migrate.parity.repository.job import RepositoryJob
from migrate.parity.repository.side import BUILD
from migrate.parity.repository.sources import Sources
from migrate.parity.stages import ORDER
from migrate.sides.recipes import Recipe
from migrate.sides.running import run_side

PROGRAMS = {
    "PyTorch": "migrate.parity.repository.capture_torch",
    "MindSpore": "migrate.parity.repository.capture_mindspore",
}
ROUNDED = ("F", "L", "G")
"""Stages whose bounds may follow the rounding of PyTorch."""


@dataclass(frozen=True)
class Runs:
    """Runs sides, some recipes in one process each."""

    sources: Sources
    recipes: list[Recipe]
    stages: tuple[str, ...]
    state: str
    folder: Path
    timeout_s: float
    torch_python: str | None = None
    candidate_path: Sequence[Path] = ()

    def side(self, name: str, advance: Callable[[int], None]) -> list[Capture]:
        """The captures of one side, PyTorch first, for all recipes."""
        reference = None if name == "PyTorch" else self.folder / "PyTorch"
        job = RepositoryJob(self.recipes, self._root(name), self.folder / name, self.stages, self.state, self._table())
        return self._run(name, job, reference, advance)

    def noise(self, numbers: Sequence[int]) -> dict[int, Capture]:
        """The reference of some recipes in fp64; not of modules that do not run so, e.g. since they insist on fp32."""
        stages = tuple(stage for stage in self.stages if stage in ROUNDED)
        found = self._some("PyTorch", numbers, "fp64", stages, dtype="float64")
        return {number: capture for number, capture in found.items() if capture.stages}

    def forced(self, numbers: Sequence[int]) -> dict[int, Capture | str]:
        """The converted modules of some recipes on the original's inputs, or why there is no such capture."""
        found = self._some("MindSpore", numbers, "forced", ("F",), forced=True)
        return {n: c if "F" in c.stages else c.errors.get("F", "it was not reached") for n, c in found.items()}

    def _some(
        self,
        name: str,
        numbers: Sequence[int],
        kind: str,
        stages: tuple[str, ...],
        *,
        dtype: str = "float32",
        forced: bool = False,
    ) -> dict[int, Capture]:
        if not numbers:
            return {}
        reference = self.folder / f"reference-{kind}"
        reference.mkdir()
        for place, number in enumerate(numbers):
            (reference / str(place)).symlink_to(self.folder / "PyTorch" / str(number), target_is_directory=True)
        out, recipes = self.folder / kind, [self.recipes[number] for number in numbers]
        root, table = self._root(name), self._table()
        job = RepositoryJob(recipes, root, out, stages, self.state, table, dtype=dtype, forced=forced)
        return dict(zip(numbers, self._run(name, job, reference, lambda _: None), strict=True))

    def _run(
        self, name: str, job: RepositoryJob, reference: Path | None, advance: Callable[[int], None]
    ) -> list[Capture]:
        job.out.mkdir()
        job.loading(reference).write(job.out / "job.json")
        python = self.torch_python if name == "PyTorch" and self.torch_python else sys.executable
        path = self.candidate_path if name == "MindSpore" else ()
        command = [python, "-m", PROGRAMS[name], str(job.out / "job.json")]
        total = len(job.recipes)
        ended = run_side(name, command, job.out, total, timeout_s=self.timeout_s, path=path, advance=advance)
        return [_read(job.out / str(number), ended.get(number)) for number in range(total)]

    def _root(self, name: str) -> Path:
        return (self.sources.original if name == "PyTorch" else self.sources.converted).absolute()

    def _table(self) -> Path:
        return (self.sources.converted / TABLE).absolute()


def _read(folder: Path, ended: str | None) -> Capture:
    """A capture; one whose process ended says so in the stages that it did not get to."""
    if not (folder / MANIFEST).is_file():
        return Capture(folder, {}, {}, {BUILD: ended or "the side did not get here"})
    capture = Capture.read(folder)
    if ended is not None:
        for stage in (BUILD, *ORDER):
            if stage not in capture.stages:
                capture.errors.setdefault(stage, ended)
    return capture


def versions(captures: Sequence[Capture]) -> Mapping[str, str]:
    """Of the frameworks."""
    return {name: version for capture in captures for name, version in capture.versions.items()}
