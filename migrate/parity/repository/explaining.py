"""Why stage F of a repository fails: which modules are guilty, each judged alone, and what may be the matter there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from mappings.formats.hf_directory import read_json
from migrate.captures.store import Capture
from migrate.parity.explain.descent import Place
from migrate.parity.explain.explanation import Evidence, Explanation
from migrate.parity.explain.running import explained
from migrate.parity.explain.sources import Source
from migrate.parity.explain.suspects import MOST, suspects
from migrate.parity.judgement import Judgement
from migrate.parity.repository.judging import Pair
from migrate.parity.repository.side import MODULES
from migrate.parity.repository.sources import Sources
from migrate.parity.tolerances import Tolerances
from migrate.report import Finding, LineStatus

EVERYTHING = np.ones((), bool)
"""The mask of a batch: of a repository it is not known which positions count."""
_DOUBTFUL = (LineStatus.REVIEW, LineStatus.UNSUPPORTED, LineStatus.UNKNOWN)


def explain_stage(
    judgement: Judgement, pair: Pair, forced: Capture | str | None, sources: Sources, tolerances: Tolerances
) -> Explanation:
    """Adds to the verdict of stage F what explains it, with the class of each module that is named.

    Args:
        judgement: gets the findings.
        pair: both sides.
        forced: the converted module on the original's inputs, or why there is no such capture.
        sources: both repositories.
        tolerances: see there.
    """
    kinds = read_json(pair.reference.out / MODULES)
    classes: dict[str, str] = {"": kinds["class"], **kinds["modules"]}
    evidence = Evidence(pair.reference, pair.candidate, forced, EVERYTHING, tolerances, pair.noise)
    result = explained(judgement, evidence, _suspects(sources, classes))
    judgement.findings[:] = [_placed(found, sources, classes) for found in judgement.findings]
    return result


def _suspects(sources: Sources, classes: Mapping[str, str]) -> Callable[[Place], Sequence[str]]:
    def listed(place: Place) -> Sequence[str]:
        path = _module(place.module, classes)
        entry = _class_at(sources, classes, path)
        if entry is None:
            return ()
        owner, rest = entry
        known = sources.class_of(classes[owner])
        assert known is not None
        source = Source.read(sources.original / known.file)
        found = [one.text for one in suspects(source, known.name.rpartition(".")[2], rest, {})]
        return [*_doubtful_lines(sources, known.name, rest), *found][:MOST]

    return listed


def _module(recorded: str, classes: Mapping[str, str]) -> str:
    """The path of a module by the name of what it gives: without the number of its call and the place of an output."""
    path = recorded.partition(":")[0].partition("@")[0]
    return path if path in classes else ""


def _class_at(sources: Sources, classes: Mapping[str, str], path: str) -> tuple[str, str] | None:
    """The nearest module above, or at, a path whose class is the repository's, and the rest of the path."""
    owner = path
    while sources.class_of(classes.get(owner, "")) is None:
        if not owner:
            return None
        owner = owner.rpartition(".")[0]
    return owner, path.removeprefix(f"{owner}.") if owner and owner != path else path if owner != path else ""


def _doubtful_lines(sources: Sources, name: str, rest: str) -> list[str]:
    """Lines of the class that the converter was not sure of, where the class itself is guilty."""
    entry = sources.class_of(name)
    if entry is None or rest:
        return []
    inside = sources.lines_of(entry)
    return [
        f"{entry.file}:{line.number} was converted with the note {line.code} ({line.status}: {line.message})"
        for file in sources.files
        if file.path == entry.file
        for line in file.lines
        if line.status in _DOUBTFUL and line.number in inside
    ]


def _placed(found: Finding, sources: Sources, classes: Mapping[str, str]) -> Finding:
    """The finding with the file and line of the class that it names a module of."""
    entry = _class_at(sources, classes, _module(found.tensor or "", classes))
    known = None if entry is None else sources.class_of(classes[entry[0]])
    if found.code == "P201":
        found = replace(found, fix="Compare the class with the original: arguments of its constructor, then its code.")
    return found if known is None else replace(found, file=known.file, line=known.line)
