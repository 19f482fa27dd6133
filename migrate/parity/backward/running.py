"""The backward passes as processes, and the explanation that comes out of them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from migrate.captures.store import MANIFEST, Capture
from migrate.parity.backward.explanation import BackwardEvidence, explain_backward
from migrate.parity.backward.naming import ARRIVING, FORCED, FREE, HANDED, OWN
from migrate.parity.codes import finding
from migrate.parity.explain.descent import Place
from migrate.parity.explain.explanation import Explanation
from migrate.parity.job import Job
from migrate.parity.judgement import Judgement
from migrate.parity.tolerances import Tolerances
from migrate.processes import run

TORCH, MINDSPORE = "migrate.parity.backward.torch_side", "migrate.parity.backward.mindspore_side"
GUILTY = ("P402", "P403")


def evidence(job: Job, candidate: Job, out: Path, tolerances: Tolerances, timeout_s: float) -> BackwardEvidence | str:
    """Runs the backward passes of both sides, or says why that does not work.

    PyTorch runs in fp64, too; if that fails, bounds are the plain ones.

    Args:
        job: of the PyTorch side.
        candidate: of the MindSpore side.
        out: directory to make.
        tolerances: see there.
        timeout_s: for each process.
    """
    reference = capture_torch(job, out / "reference", timeout_s)
    if isinstance(reference, str):
        return reference
    exact = capture_torch(replace(job, dtype="float64"), out / "exact", timeout_s)
    folder = out / "candidate"
    folder.mkdir()
    candidate.write(folder / "job.json")
    outcome = run(
        [sys.executable, "-m", MINDSPORE, str(folder / "job.json"), str(reference.out), str(folder)], timeout_s
    )
    sides = [_read(folder / kind) for kind in (FREE, FORCED)]
    free, forced = (side or outcome.reason() for side in sides)
    if isinstance(free, str) or isinstance(forced, str):
        return f"MindSpore: {free if isinstance(free, str) else forced}"
    return BackwardEvidence(reference, free, forced, tolerances, exact if isinstance(exact, Capture) else None)


def capture_torch(job: Job, out: Path, timeout_s: float) -> Capture | str:
    """The reference's backward pass, or why there is none."""
    out.mkdir(parents=True)
    job.write(out / "job.json")
    outcome = run([sys.executable, "-m", TORCH, str(out / "job.json"), str(out)], timeout_s)
    found = _read(out)
    return found if isinstance(found, Capture) else f"PyTorch: {found or outcome.reason()}"


def explained(
    judgement: Judgement, proof: BackwardEvidence | str, suspects: Callable[[Place], Sequence[str]]
) -> Explanation:
    """Adds to the verdict of stage G what explains it.

    Args:
        judgement: gets the findings; where a forced pass names the guilty, the tensor nearest to the loss stays of
            those that differ, the others stand in the facts.
        proof: what both sides computed, or why there is nothing.
        suspects: what may be the matter at a place.
    """
    if isinstance(proof, str):
        result = Explanation([finding("P405", f"no gradients at modules: {proof}")])
    else:
        result = explain_backward(proof, suspects)
    if any(one.code in GUILTY for one in result.findings):
        listed = [one for one in judgement.findings if one.code == "P401"]
        judgement.findings[:] = [one for one in judgement.findings if one not in listed[1:]]
    judgement.findings += result.findings
    return result


def _read(out: Path) -> Capture | str | None:
    """A capture, why a stage of it is lacking, or None where the process did not get to it."""
    if not (out / MANIFEST).is_file():
        return None
    capture = Capture.read(out)
    lacking = [stage for stage in (ARRIVING, HANDED, OWN) if stage not in capture.stages]
    if lacking:
        return capture.errors.get(lacking[0])
    return capture
