"""Why stage G failed, from both sides' backward passes: findings, and a row per module."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from migrate.captures.store import Capture
from migrate.parity.backward.guilt import Descent, Guilty, descend, guilty
from migrate.parity.backward.naming import split
from migrate.parity.backward.passes import Pass
from migrate.parity.codes import finding
from migrate.parity.explain.descent import Place
from migrate.parity.explain.explanation import NAMED, Explanation, with_suspects
from migrate.parity.explain.looking import Look
from migrate.parity.explain.tree import Tree
from migrate.parity.judgement import plain, what_differs
from migrate.parity.tolerances import Tolerances
from migrate.report import Finding


@dataclass(frozen=True)
class BackwardEvidence:
    """What both sides computed."""

    reference: Capture
    free: Capture
    forced: Capture
    """The candidate with the reference's values, and the reference's gradients arriving at every module."""
    tolerances: Tolerances
    noise: Capture | None = None
    """The reference in fp64."""

    def passes(self) -> tuple[Pass, Pass]:
        """(free, forced) beside the reference."""
        tree = Tree.of(self.reference.names("F"))
        free, forced = (
            Pass(tree, self.reference, candidate, self.tolerances, self.noise) for candidate in (self.free, self.forced)
        )
        return free, forced


def explain_backward(evidence: BackwardEvidence, suspects: Callable[[Place], Sequence[str]]) -> Explanation:
    """Finds where gradients part, and which modules make wrong ones by themselves.

    Args:
        evidence: see there.
        suspects: what may be the matter at a place.

    Returns:
        Rows with what arrives as `input` and what the module makes of it as `output`, each before its submodules.
    """
    free, forced = evidence.passes()
    descent = descend(free)
    seen = sum(len(one.seen) for one in (free.arriving, free.handed, free.own))
    result = Explanation(path=list(descent.path) if descent else [], looked_at=seen)
    culprits = guilty(forced)
    result.findings += [_guilty(one, free, forced, suspects(one.place)) for one in culprits]
    if not culprits and descent is not None:
        result.findings.append(_nobody(descent, free))
    named = {name: one for one in reversed(culprits) for name in [one.place.module, *one.others]}
    first = {one.place.module: one for one in reversed(culprits)}
    for name, depth in forced.tree.walk():
        result.rows.append(_row(name, depth, free, forced, name in named))
        if name in first:
            one = first[name]
            result.rows[-1]["alone"] = plain(one.look.difference.relative)
            result.rows[-1] |= {"place": str(one.place), "suspects": list(suspects(one.place))}
    return result


def _row(name: str, depth: int, free: Pass, forced: Pass, is_guilty: bool) -> dict[str, Any]:
    arriving, made, alone = free.arriving(name), free.worst(name), forced.worst(name)
    if is_guilty:
        verdict = "guilty"
    elif arriving is None and made is None:
        verdict = "not judged"
    else:
        verdict = "heir" if free.wrong(name) or (arriving is not None and arriving.wrong) else "agrees"
    sizes = {"input": arriving, "output": made, "alone": alone}
    row: dict[str, Any] = {"name": name, "depth": depth, "verdict": verdict}
    row |= {key: None if look is None else plain(look.difference.relative) for key, look in sizes.items()}
    look = made or arriving
    return row | {"limit": look.limit.relative if look else None}


def _guilty(one: Guilty, free: Pass, forced: Pass, suspects: Sequence[str]) -> Finding:
    place = one.place
    others = ""
    if one.others:
        names = ", ".join(one.others[:NAMED]) + (", ..." if len(one.others) > NAMED else "")
        others = f"; of this kind too: {names}"
    gradients = [
        f"{split(name)[0]} {look.difference.relative:.3g}" for name, look in forced.own_of(place.module).items()
    ]
    own = f"; its parameters, alone: {', '.join(gradients)}" if gradients else ""
    errors = []
    for what, look in (("of its output", free.arriving(place.module)), ("it hands back", free.handed(place.module))):
        if look is not None:
            errors.append(f"error of the gradient {what} {look.difference.relative:.3g}")
    at_submodule = free.arriving(place.behind) if place.behind else None
    if at_submodule is not None:
        errors.append(f"of what arrives at {place.behind} {at_submodule.difference.relative:.3g}")
    message = (
        f"given the reference's values and gradients, {one.what} is wrong: {_described(one.look)}{others}{own}; "
        f"in the free run: {', '.join(errors) or 'its errors are not recorded'}"
    )
    if place.is_own_code:
        message = f"{str(place).removeprefix(place.module).lstrip(', ')}: {message}"
    found = finding("P403" if place.is_own_code else "P402", message, tensor=place.module or None)
    return with_suspects(found, suspects)


def _nobody(descent: Descent, free: Pass) -> Finding:
    place = descent.place
    look = free.worst(place.behind or place.module)
    size = f" ({look.difference.relative:.3g}, limit {look.limit.relative:.3g})" if look else ""
    return finding("P404", f"gradients part first at {place}{size}", tensor=place.module or None)


def _described(look: Look) -> str:
    if look.difference.problem is not None:
        return look.difference.problem
    return f"{what_differs('G', look.difference, look.limit)}, {look.difference.where()}"
