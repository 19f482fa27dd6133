"""Whose fault a failing stage is: the model's, which one process shows as well, or that of a part of the layout."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from migrate.parity.codes import finding
from migrate.parity.layouts.request import Request
from migrate.parity.layouts.smaller import smaller
from migrate.progress import Tracker
from migrate.report import Finding, Verdict

ONE = "one process"
RANK = "one rank"
"""The step of the runner without any layout; one process computes loss and gradients without the runner."""
LOOK: Mapping[str, str] = {
    RANK: "the step of the runner: what the loss is divided by, and the sum over micro-batches (each has one row)",
    "sequence_parallel": "norms and biases that every rank holds see a part of the sequence; their gradients are "
    "summed over tp",
    "tp": "the sum behind row-parallel layers, their bias (added once), heads and rows of this rank, padded rows of "
    "the vocabulary in the softmax",
    "context": "which positions a rank holds, and how keys and values cross the ranks",
    "cp": "positions of this rank's part (rotary angles, mask), the sum of gradients over cp",
    "ep": "which experts a rank holds, and the sum of their gradients over dp / ep replicas, neither averaged nor over "
    "all dp",
    "zero": "which rows a rank keeps, the order in which they are gathered, a norm over all ranks",
    "dp": "gradients summed over dp, and divided once, by the tokens of the whole batch and not by the ranks",
    "schedule": "which micro-batch a backward pass belongs to, and gradients of weights that come later",
    "vpp": "which layers a chunk holds, and where its output goes",
    "pp": "the scale of the loss (once, for all micro-batches), every micro-batch counted, a tied table summed over "
    "both ends",
    "recompute": "what the backward pass computes again: random state, and arguments that changed since",
}
"""By what a layout has: where the faults are that belong to it."""


@dataclass
class Blame:
    """What repeating a failing stage with less of the layout has shown."""

    findings: list[Finding] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)
    """By layout: verdict of the stage."""
    of_model: bool = False
    """Whether one process fails as well."""


def blame(title: str, request: Request, verdict_of: Callable[[Request | None], Verdict], track: Tracker) -> Blame:
    """Repeats a failing stage in one process; if that passes, on one rank and with one part of the layout at a time.

    Args:
        title: of the stage.
        request: the layout that it fails in.
        verdict_of: the stage once more on the same batch, with a layout; in one process for None.
        track: progress.
    """
    result = Blame()
    candidates = [one for one in (Request(), *smaller(request)) if one != request]
    with track("whose fault", 1 + len(candidates)) as advance:
        alone = verdict_of(None)
        advance(1)
        result.facts[ONE] = alone.value
        if alone is Verdict.COULD_NOT_RUN:
            result.findings.append(finding("P001", f"{title}: {ONE} could not be compared, so nobody is to blame yet"))
            return result
        if alone is Verdict.FAIL:
            result.of_model = True
            result.findings.append(finding("P703", f"{title}: {ONE} differs as well, on the same batch"))
            return result
        guilty = None
        for candidate in candidates:
            verdict = verdict_of(candidate)
            advance(1)
            result.facts[_name(candidate)] = verdict.value
            if verdict is Verdict.FAIL:
                guilty = candidate
                break
    result.findings.append(_of_layout(title, request, guilty, result.facts))
    return result


def _of_layout(title: str, request: Request, guilty: Request | None, facts: Mapping[str, str]) -> Finding:
    agreeing = [name for name, verdict in facts.items() if verdict == Verdict.PASS and name not in (ONE, RANK)]
    unknown = [name for name, verdict in facts.items() if verdict == Verdict.COULD_NOT_RUN]
    others = "".join(
        f"; {text}: {', '.join(names)}"
        for text, names in (("alone these agree", agreeing), ("could not run", unknown))
        if names
    )
    if guilty is not None:
        culprit, what = guilty, f"{_name(guilty)} alone differs"
    elif agreeing or unknown:
        culprit, what = request, f"it takes {request} as a whole"
    else:
        culprit, what = request, f"it is that of {request}"
    whose = "the fault is the runner's" if culprit == Request() else "the fault is the layout's"
    found = finding("P702", f"{title}: {ONE} agrees on the same batch, {whose}: {what}{others}")
    # Where an axis alone agrees, what was added to it is guilty.
    axes = _named(culprit) - {name for one in agreeing for name in _words(one)}
    wanted = {RANK} if culprit == Request() else axes or _named(culprit)
    looks = [f"{name}: {LOOK[name]}" for name in LOOK if name in wanted]
    return replace(found, fix=f"{found.fix} Look at {'; '.join(looks)}.") if looks else found


def _name(request: Request) -> str:
    return RANK if request == Request() else str(request)


def _named(request: Request) -> set[str]:
    return _words(str(request))


def _words(text: str) -> set[str]:
    return {word.partition("=")[0] for word in text.split()}
