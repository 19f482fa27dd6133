"""The forced pass as a process, and the explanation that comes out of it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mappings.families import Family
from migrate.captures.store import MANIFEST, Capture
from migrate.parity.explain.descent import Place
from migrate.parity.explain.explanation import Evidence, Explanation, explain
from migrate.parity.explain.sources import find_source
from migrate.parity.explain.suspects import suspects
from migrate.parity.explain.tree import ROOT
from migrate.parity.job import Job
from migrate.parity.judgement import Judgement
from migrate.parity.modules import CHOICE
from migrate.parity.stages import LOGITS
from migrate.processes import run
from migrate.report import Stage, Verdict

FORCED = "migrate.parity.forced_mindspore"


def forced(job: Job, reference: Capture, out: Path, timeout_s: float) -> Capture | str:
    """The candidate on the reference's inputs, or why there is no such capture.

    Args:
        job: of the MindSpore side; its directory is the candidate's.
        reference: of stage F, with the inputs of the modules.
        out: directory to make.
        timeout_s: for the process.
    """
    out.mkdir()
    job.write(out / "job.json")
    outcome = run([sys.executable, "-m", FORCED, str(out / "job.json"), str(reference.out), str(out)], timeout_s)
    if not (out / MANIFEST).is_file():
        return outcome.reason()
    capture = Capture.read(out)
    return capture if "F" in capture.stages else capture.errors.get("F", outcome.reason())


def explained(judgement: Judgement, evidence: Evidence, suspects: Callable[[Place], Sequence[str]]) -> Explanation:
    """Adds to the verdict of stage F what explains it.

    Args:
        judgement: gets the findings; what is said there of later outputs gives way to a forced pass, which knows.
        evidence: see there.
        suspects: what may be the matter at a place.
    """
    result = explain(evidence, suspects)
    if isinstance(evidence.forced, Capture):
        judgement.findings[:] = [one for one in judgement.findings if one.code != "P202"]
    judgement.findings += result.findings
    return result


def alone_stage(stage: str, problem: str | None, result: Explanation) -> Stage:
    """The verdict of a forced pass that was asked for.

    Args:
        stage: whose modules are judged, F or G.
        problem: why there was no forced pass.
        result: what it showed.
    """
    title = f"{stage} alone"
    if problem is not None:
        return Stage(title, Verdict.COULD_NOT_RUN, problem)
    judged = [row for row in result.rows if row["verdict"] != "not judged"]
    guilty = [row for row in judged if row["verdict"] == "guilty"]
    worst = max((row for row in judged if isinstance(row["alone"], float)), key=lambda row: row["alone"], default=None)
    figures: dict[str, float | int | str] = {"not judged": len(result.rows) - len(judged)}
    if worst is not None:
        figures |= {"worst relative": worst["alone"], "worst module": worst["name"]}
    if result.findings or not judged:
        message = result.findings[0].message if result.findings else "nothing was judged"
        if guilty:
            message = f"{len(guilty)} of {len(judged)} modules are guilty, first {guilty[0]['name']}"
        return Stage(title, Verdict.FAIL, message, len(judged), figures)
    return Stage(title, Verdict.PASS, f"{len(judged)} modules agree, each alone", len(judged), figures)


def suspects_of(
    family: Family, config: Mapping[str, Any], candidate: Mapping[str, Any] | None = None
) -> Callable[[Place], Sequence[str]]:
    """What may be the matter at a place, from transformers' source of the family.

    Args:
        family: of the model.
        config: `config.json` of the reference.
        candidate: that of the candidate, where it is another one.
    """
    found = find_source(family.architectures, str(config["model_type"]))
    known: dict[str, Sequence[str]] = {}

    def listed(place: Place) -> Sequence[str]:
        if found is None:
            return ()
        path = place.module.removesuffix(CHOICE) if place.module != LOGITS else ROOT
        if path == ROOT and place.into:  # the body has the code between embedding, layers and norm
            path = place.into.partition(".")[0]
        if path not in known:
            known[path] = [one.text for one in suspects(*found, path, config, candidate)]
        return known[path]

    return listed
