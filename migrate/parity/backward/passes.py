"""One backward pass of the candidate beside the reference's: what is compared, and what is wrong at a module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from migrate.captures.compare import Difference
from migrate.captures.store import Capture
from migrate.parity.backward.naming import ARRIVING, HANDED, OWN, owner, split
from migrate.parity.explain.looking import Look, Looking
from migrate.parity.explain.tree import Tree
from migrate.parity.modules import CHOICE, LOGITS
from migrate.parity.tolerances import Limit, Tolerances

EVERYTHING = np.ones((), bool)
"""The mask of gradients: positions that do not count have a gradient of zero, and that is compared, too."""
BACK = "what it hands back"


@dataclass(frozen=True)
class Pass:
    """Comparisons of one pass, made when they are asked for."""

    tree: Tree
    reference: Capture
    candidate: Capture
    tolerances: Tolerances
    noise: Capture | None = None
    """The reference in fp64."""

    @cached_property
    def arriving(self) -> Looking:
        """By module: the gradient of its output."""
        return self._looking(ARRIVING)

    @cached_property
    def handed(self) -> Looking:
        """By module: the gradient it hands back to its input."""
        return self._looking(HANDED)

    @cached_property
    def own(self) -> Looking:
        """By name in `OWN`: the gradient of a parameter."""
        return self._looking(OWN)

    @cached_property
    def owners(self) -> Mapping[str, Sequence[str]]:
        """By module, or `LOGITS` for the head: names in `OWN`."""
        modules = [name for name in self.tree.parents if not name.endswith(CHOICE)]
        found: dict[str, list[str]] = {}
        for name in self.reference.names(OWN):
            found.setdefault(owner(name, modules, LOGITS), []).append(name)
        return found

    def own_of(self, module: str) -> dict[str, Look]:
        """Gradients of a module's own parameters, without those of its submodules.

        One that the candidate does not have is wrong.
        """
        held = set(self.candidate.names(OWN))
        found = {}
        for name in self.owners.get(module, ()):
            look = self.own(name) if name in held else _lacking(name)
            if look is not None:
                found[name] = look
        return found

    def wrong(self, module: str) -> tuple[str, Look] | None:
        """The first wrong thing that a module itself makes of the gradient that arrives, in words; None if all agree.

        That of its parameters counts before what it hands back, as it is the module's for certain.
        """
        for name, look in self.own_of(module).items():
            if look.wrong:
                return f"the gradient of {split(name)[0]}", look
        look_back = self.handed(module)
        return (BACK, look_back) if look_back is not None and look_back.wrong else None

    def differs(self, module: str) -> bool:
        """Whether anything is wrong that a module makes, or that arrives at or is made by a module inside of it."""
        inside = [name for name, _ in self.tree.walk(module)]
        arriving = (self.arriving(name) for name in inside)
        return any(self.wrong(name) is not None for name in (module, *inside)) or any(
            look is not None and look.wrong for look in arriving
        )

    def worst(self, module: str) -> Look | None:
        """The largest relative difference of what a module itself makes; None where nothing was compared."""
        looks = [*self.own_of(module).values(), *filter(None, [self.handed(module)])]
        return max(looks, key=lambda look: look.difference.relative, default=None)

    def _looking(self, stage: str) -> Looking:
        with self.reference.reader(stage) as read:
            largest = max(
                (float(np.abs(read(name)).max(initial=0.0)) for name in self.reference.names(stage)), default=0
            )
        return Looking(
            self.reference, self.candidate, stage, EVERYTHING, self.tolerances, self.noise, bounds="G", largest=largest
        )


def _lacking(name: str) -> Look:
    problem = "the candidate has no gradient of it"
    return Look(Difference(name, 0, np.inf, np.inf, 0, (), np.nan, np.nan, problem), Limit(0.0, 0.0), True)
