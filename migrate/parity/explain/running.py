"""The forced pass as a process, and the explanation that comes out of it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mappings.families import Family
from migrate.captures.store import MANIFEST, Capture
from migrate.parity.explain.descent import Place
from migrate.parity.explain.sources import find_source
from migrate.parity.explain.suspects import suspects
from migrate.parity.explain.tree import ROOT
from migrate.parity.job import Job
from migrate.parity.stages import LOGITS
from migrate.processes import run

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
        path = place.module if place.module != LOGITS else ROOT
        if path == ROOT and place.into:  # the body has the code between embedding, layers and norm
            path = place.into.partition(".")[0]
        if path not in known:
            known[path] = [one.text for one in suspects(*found, path, config, candidate)]
        return known[path]

    return listed
