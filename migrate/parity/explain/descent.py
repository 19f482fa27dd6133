"""First divergence by descent (the idea of PaDiff): from the root into the first child that differs, and so on."""

from __future__ import annotations

from dataclasses import dataclass

from migrate.parity.explain.looking import Looking
from migrate.parity.explain.tree import ROOT, Tree, title


@dataclass(frozen=True)
class Place:
    """Where code is that computes something wrong."""

    module: str
    """Its module, `ROOT` for the model itself."""
    into: str | None = None
    """The submodule whose input it computes."""
    behind: str | None = None
    """The last submodule it has used."""

    @property
    def is_own_code(self) -> bool:
        """Whether it lies between submodules; without any the module computes one thing."""
        return self.into is not None or self.behind is not None

    def __str__(self) -> str:
        own = title(self.module)
        short = f"{self.module}." if self.module else ""
        behind = "" if self.behind is None else self.behind.removeprefix(short)
        if self.into is None:
            return f"{own}, behind {behind}" if behind else own
        way = f"on the way into {self.into.removeprefix(short)}"
        return f"{own}, between {behind} and {self.into.removeprefix(short)}" if behind else f"{own}, {way}"


@dataclass(frozen=True)
class Descent:
    """What the descent found."""

    path: tuple[str, ...]
    """Modules that differ, from the outermost to the guilty one."""
    place: Place
    proven: bool
    """Whether the input of the guilty module was seen to agree."""


def descend(tree: Tree, inputs: Looking, outputs: Looking) -> Descent | None:
    """Walks from the root to the module where the difference begins; None if nothing differs.

    A child that the candidate does not run is guilty. One whose output differs is entered if its input agrees; if that
    differs already, the code before the child is guilty, as everything computed earlier agrees. Only siblings up to the
    first that differs are compared, level by level, so the cost follows the path and not the size of the model.
    """
    path: list[str] = []
    node, proven = ROOT, True
    while True:
        before: str | None = None
        for child in tree.children[node]:
            if outputs.lacks(child):
                return Descent((*path, child), Place(child), True)
            look = outputs(child)
            if look is not None and look.wrong:
                break
            before = child
        else:
            if node == ROOT:
                return None
            return Descent(tuple(path), Place(node, behind=before), proven)
        arrived = inputs(child)
        if arrived is not None and arrived.wrong:
            return Descent(tuple(path), Place(node, into=child, behind=before), True)
        path.append(child)
        node, proven = child, arrived is not None
