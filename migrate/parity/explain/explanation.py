"""Why stage F failed, from the captures of both sides and of the forced pass: findings, and a row per module."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from migrate.captures.store import Capture
from migrate.parity.codes import finding
from migrate.parity.explain.alone import Guilty, guilty
from migrate.parity.explain.descent import Descent, Place, descend
from migrate.parity.explain.looking import Look, Looking
from migrate.parity.explain.tree import ROOT, Tree
from migrate.parity.judgement import plain, what_differs
from migrate.parity.recording import INPUTS
from migrate.parity.tolerances import Tolerances
from migrate.report import Finding

NAMED = 3  # further modules of one kind that are named


@dataclass
class Explanation:
    """What is known about a difference of stage F."""

    findings: list[Finding] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)
    """One per module in the order of computation, each before its submodules: `name`, `depth`, relative differences of
    `input` and `output` in the free run and of what it computes `alone`, `limit`, and `verdict`: guilty, heir, agrees,
    not judged, or differs where there was no forced pass. Guilty ones have their `place` and `suspects`."""
    path: list[str] = field(default_factory=list)
    """Modules that the descent went through."""
    looked_at: int = 0
    """Tensors that the descent compared."""


@dataclass(frozen=True)
class Evidence:
    """What both sides computed."""

    reference: Capture
    candidate: Capture
    forced: Capture | str | None
    """The candidate on the reference's inputs, or why there is no such capture; None if it was not asked for."""
    mask: np.ndarray
    tolerances: Tolerances
    noise: Capture | None = None

    def looking(self, candidate: Capture, stage: str) -> Looking:
        """Comparisons of a capture with the reference."""
        return Looking(self.reference, candidate, stage, self.mask, self.tolerances, self.noise)


def explain(evidence: Evidence, suspects: Callable[[Place], Sequence[str]]) -> Explanation:
    """Finds where the difference begins, and which modules are wrong by themselves.

    Args:
        evidence: captures that both hold stage F.
        suspects: what may be the matter at a place.
    """
    tree = Tree.of(evidence.reference.names("F"))
    inputs, outputs = (evidence.looking(evidence.candidate, stage) for stage in (INPUTS, "F"))
    descent = descend(tree, inputs, outputs)
    result = Explanation(path=list(descent.path) if descent else [], looked_at=len(inputs.seen) + len(outputs.seen))
    alone: tuple[Looking, Looking] | None = None
    culprits: list[Guilty] = []
    if isinstance(evidence.forced, Capture):
        alone = evidence.looking(evidence.forced, INPUTS), evidence.looking(evidence.forced, "F")
        culprits = guilty(tree, *alone)
        result.findings += [_guilty(one, inputs, outputs, suspects(one.place)) for one in culprits]
        if not culprits and descent is not None:
            result.findings.append(_nobody(descent, outputs))
    elif descent is not None:
        result.findings.append(_not_forced(evidence.forced, descent, inputs, outputs, suspects(descent.place)))
    places = {one.place.module: one for one in culprits}
    named = {name: one for one in culprits for name in [one.place.module, *one.others]}
    for name, depth in tree.walk():
        looks = inputs(name), outputs(name)
        own = (None, None) if alone is None else (alone[0](name), alone[1](name))
        verdict = _verdict(name in named, looks[1], own, alone is not None)
        row: dict[str, Any] = {"name": name, "depth": depth, "verdict": verdict}
        row |= dict(zip(("input", "output", "alone output"), map(_size, (*looks, own[1])), strict=True))
        row["limit"] = looks[1].limit.relative if looks[1] else None
        row["alone"] = row.pop("alone output")
        if name in places:
            row["alone"] = _size(places[name].look)
            row["place"], row["suspects"] = str(places[name].place), list(suspects(places[name].place))
        result.rows.append(row)
    return result


def _verdict(is_guilty: bool, output: Look | None, own: tuple[Look | None, Look | None], forced: bool) -> str:
    if is_guilty:
        return "guilty"
    if output is None or (forced and own == (None, None)):
        return "not judged"
    return "agrees" if not output.wrong else "heir" if forced else "differs"


def _size(look: Look | None) -> float | str | None:
    return None if look is None else plain(look.difference.relative)


def _guilty(one: Guilty, inputs: Looking, outputs: Looking, suspects: Sequence[str]) -> Finding:
    what = f"what it hands to {one.place.into}" if one.place.into else "its output"
    others = ""
    if one.others:
        names = ", ".join(one.others[:NAMED]) + (", ..." if len(one.others) > NAMED else "")
        number = "one other" if len(one.others) == 1 else f"{len(one.others)} others"
        others = f"; {number} of this kind too: {names}"
    message = (
        f"{one.place}: given the reference's input, {what} is wrong: {_described(one.look)}{others}; in the free run: "
    )
    return _finding("P204" if one.place.is_own_code else "P203", message, one.place, inputs, outputs, suspects)


def _not_forced(
    reason: str | Capture | None, descent: Descent, inputs: Looking, outputs: Looking, suspects: Sequence[str]
) -> Finding:
    why = "not asked for" if reason is None else reason
    sure = "its input agrees" if descent.proven else "its input was not recorded on both sides"
    message = f"the difference begins here ({sure}; forced pass: {why}): "
    return _finding("P206", message, descent.place, inputs, outputs, suspects)


def _finding(
    code: str, message: str, place: Place, inputs: Looking, outputs: Looking, suspects: Sequence[str]
) -> Finding:
    """With the errors of the module's input and output in the free run, and what may be the matter."""
    if place.is_own_code or place.module == ROOT:  # a module alone stands beside the message
        message = f"{str(place).removeprefix(place.module).lstrip(', ')}: {message}"
    errors = []
    for what, look in (("input", inputs(place.module)), ("output", outputs(place.module))):
        if look is not None:
            errors.append(f"{what} error {look.difference.relative:.3g}")
    if place.into and (arrived := inputs(place.into)):
        errors.append(f"error into {place.into} {arrived.difference.relative:.3g}")
    result = finding(code, message + (", ".join(errors) or "its errors are not recorded"), tensor=place.module or None)
    return with_suspects(result, suspects)


def with_suspects(found: Finding, suspects: Sequence[str]) -> Finding:
    """The finding, whose fix says what to look at first."""
    if not suspects:
        return found
    listed = "; ".join(f"({number}) {text}" for number, text in enumerate(suspects, 1))
    return replace(found, fix=f"{found.fix} Look first at: {listed}.")


def _nobody(descent: Descent, outputs: Looking) -> Finding:
    name = next((name for name in reversed(descent.path)), None) or descent.place.into or ""
    look = outputs(name)
    size = f" ({look.difference.relative:.3g}, limit {look.limit.relative:.3g})" if look else ""
    return finding("P205", f"the difference is over its bound first at {name}{size}", tensor=name)


def _described(look: Look) -> str:
    if look.difference.problem is not None:
        return look.difference.problem
    return f"{what_differs('F', look.difference, look.limit)}, {look.difference.where()}"
