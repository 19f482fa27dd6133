"""What one side of a verification is asked to run."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from migrate.sides.recipes import Recipe


@dataclass(frozen=True)
class Job:
    """What one side is asked to run."""

    recipes: list[Recipe]
    root: Path
    """Directory that goes to the front of `sys.path`."""
    out: Path
    """A capture is written to `out/<number of the recipe>`."""
    reference: Path | None
    """`out` of the PyTorch side, whose weights the other side loads; None on the PyTorch side."""
    steps: int
    seed: int = 0
    compiled: bool = False
    """Whether the MindSpore side compares modules as graphs, where their recipes do not say otherwise."""

    def write(self, path: Path) -> None:
        """Stores the job as JSON."""
        body = asdict(self) | {"root": str(self.root), "out": str(self.out)}
        body["reference"] = None if self.reference is None else str(self.reference)
        path.write_text(json.dumps(body), encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Job:
        """Reads a job that `write` stored."""
        body = json.loads(path.read_text(encoding="utf-8"))
        recipes = [Recipe(**recipe) for recipe in body.pop("recipes")]
        reference = body.pop("reference")
        root, out = Path(body.pop("root")), Path(body.pop("out"))
        return cls(recipes, root, out, None if reference is None else Path(reference), **body)
