"""The table that `run.py` writes: figures of each package, goals, and the reason of every miss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Miss:
    """Something that a goal counts and that did not work."""

    name: str
    """A file, or the qualified name of a class."""
    stage: str
    reason: str


@dataclass
class PackageResult:
    """Figures of one package; lists name what the figures leave out."""

    name: str
    version: str
    lines: int
    files: int
    parsed: int
    valid: int
    findings: int
    recipes: int = 0
    imported_in_torch: int = 0
    imported: int = 0
    torch_builds: int = 0
    passed: dict[str, int] = field(default_factory=dict)
    """Stage of the comparison -> classes that passed it."""
    misses: list[Miss] = field(default_factory=list)
    unimportable: dict[str, str] = field(default_factory=dict)
    """Files of which it is known that PyTorch cannot import them -> why."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Module classes without a recipe -> why."""
    no_gradients: list[str] = field(default_factory=list)
    """Classes whose output PyTorch cannot differentiate."""
    seconds: float = 0.0


@dataclass(frozen=True)
class Goal:
    """A share that is demanded."""

    name: str
    part: int
    whole: int
    least: float

    @property
    def reached(self) -> bool:
        return self.whole > 0 and self.part >= self.least * self.whole

    def __str__(self) -> str:
        share = f"{self.part} of {self.whole} ({self.part / max(self.whole, 1):.1%})"
        return f"{self.name}: {share}, goal {self.least:.0%}: {'reached' if self.reached else 'MISSED'}"


def goals(results: Sequence[PackageResult]) -> list[Goal]:
    """The goals over all packages; what is compared with has to work, or nothing was measured."""

    def total(count: Callable[[PackageResult], int]) -> int:
        return sum(count(result) for result in results)

    files, in_torch = total(lambda r: r.files), total(lambda r: r.imported_in_torch)
    builds = total(lambda r: r.torch_builds)
    found = [
        Goal("valid Python", total(lambda r: r.valid), files, 1.0),
        Goal("files that import in PyTorch", in_torch, files - total(lambda r: len(r.unimportable)), 1.0),
        Goal("files that import", total(lambda r: r.imported), in_torch, 0.95),
        Goal("recipes that build in PyTorch", builds, total(lambda r: r.recipes), 1.0),
        Goal("classes with equal forward", total(lambda r: r.passed.get("forward", 0)), builds, 0.80),
    ]
    return found if total(lambda r: r.recipes) else found[:3]


COLUMNS = ("lines", "files", "parsed", "valid", "import in torch", "import", "findings")
CLASS_COLUMNS = ("recipes", "build in torch", "build", "names", "forward", "gradients", "trained")


def as_markdown(results: Sequence[PackageResult], run: str) -> str:
    """The whole report; `run` says under which circumstances it was made."""
    heads = ("package", *COLUMNS, *CLASS_COLUMNS)
    rows = [[f"{r.name} {r.version}", *map(str, _figures(r))] for r in results]
    if len(results) > 1:
        sums = (sum(column) for column in zip(*map(_figures, results), strict=True))
        rows.append(["total", *map(str, sums)])
    widths = [max(len(row[i]) for row in [list(heads), *rows]) for i in range(len(heads))]
    lines = [_line(heads, widths), _line(["-" * width for width in widths], widths)]
    lines += [_line(row, widths) for row in rows]
    lines += ["", *(f"* {goal}" for goal in goals(results)), "", f"{run}."]
    for result in results:
        lines += _details(result)
    return "\n".join(lines) + "\n"


def _figures(r: PackageResult) -> list[int]:
    stages = [r.passed.get(stage, 0) for stage in ("build", "weights", "forward", "gradients", "training")]
    return [
        r.lines,
        r.files,
        r.parsed,
        r.valid,
        r.imported_in_torch,
        r.imported,
        r.findings,
        r.recipes,
        r.torch_builds,
        *stages,
    ]


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first = cells[0].ljust(widths[0])
    return f"| {' | '.join([first, *(c.rjust(w) for c, w in zip(cells[1:], widths[1:], strict=True))])} |"


def _details(result: PackageResult) -> list[str]:
    lines = ["", f"## {result.name}"]
    groups = [
        ("Misses", [f"{m.name}: {m.stage}: {m.reason}" for m in result.misses]),
        ("Not importable in PyTorch", [f"{k}: {v}" for k, v in result.unimportable.items()]),
        ("Classes left out", [f"{k}: {v}" for k, v in result.left_out.items()]),
        ("Nothing to differentiate", result.no_gradients),
    ]
    for title, entries in groups:
        if entries:
            lines += ["", f"{title}:", "", *(f"* {' '.join(entry.split())}" for entry in entries)]
    return lines if len(lines) > 2 else []
