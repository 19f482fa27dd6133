"""What one side of a comparison of repositories is asked to capture."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from mappings.formats.hf_directory import read_json
from migrate.sides.recipes import Recipe


@dataclass(frozen=True)
class RepositoryJob:
    """What one side captures."""

    recipes: list[Recipe]
    root: Path
    """Directory that goes to the front of `sys.path`."""
    out: Path
    """A capture is written to `out/<number of the recipe>`."""
    stages: tuple[str, ...]
    state: str
    """One of `states.STATES`: what the weights are like."""
    table: Path
    """`weights_table.json`, which says what each tensor becomes."""
    reference: Path | None = None
    """`out` of the PyTorch side, whose weights are loaded; None: it makes them."""
    dtype: str = "float32"
    """float64 measures the rounding of the PyTorch side."""
    forced: bool = False
    """Whether every module is fed what its counterpart in the reference had."""
    seed: int = 0

    def loading(self, reference: Path | None) -> RepositoryJob:
        """The same with another reference."""
        return replace(self, reference=reference)

    def write(self, path: Path) -> None:
        """Stores the job as JSON."""
        body = asdict(self) | {"root": str(self.root), "out": str(self.out), "table": str(self.table)}
        body["reference"] = None if self.reference is None else str(self.reference)
        path.write_text(json.dumps(body), encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> RepositoryJob:
        """Reads a job that `write` stored."""
        body = read_json(path)
        root, out, table = (Path(body.pop(name)) for name in ("root", "out", "table"))
        reference = body.pop("reference")
        recipes = [Recipe(**recipe) for recipe in body.pop("recipes")]
        stages = tuple(body.pop("stages"))
        reference = None if reference is None else Path(reference)
        return cls(recipes, root, out, stages, table=table, reference=reference, **body)
