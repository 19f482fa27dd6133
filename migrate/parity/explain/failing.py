"""Why a stage of a model's comparison failed, module by module: further captures, findings, facts of the report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mappings.formats.hf_directory import read_config
from migrate.captures.store import Capture
from migrate.parity.backward import running as backward
from migrate.parity.backward.suspects import suspects_of_cells
from migrate.parity.explain import running as forward
from migrate.parity.explain.explanation import Evidence, Explanation
from migrate.parity.job import Job
from migrate.parity.judgement import Judgement
from migrate.parity.plan import Plan
from migrate.parity.tolerances import Tolerances
from migrate.report import Report, Stage, Verdict

MODULES: dict[str, str] = {"F": "modules", "G": "modules backward"}
"""By stage: the fact with a row per module."""


@dataclass(frozen=True)
class Explainer:
    """What all explanations of one comparison share. The candidate runs in one process."""

    plan: Plan
    candidate: Job
    """Of the MindSpore side."""
    folder: Path
    """Where further captures go."""
    tolerances: Tolerances
    timeout_s: float
    """For each process."""
    force: bool = False
    """Judge every module alone although the stage passes."""

    def forward(
        self,
        report: Report,
        judgement: Judgement,
        reference: Capture,
        candidate: Capture,
        noise: Callable[[], Capture | None],
    ) -> Stage | None:
        """Explains stage F; the verdict of the forced pass, where that was asked for.

        Args:
            report: gets facts.
            judgement: of stage F; gets findings.
            reference: the PyTorch side.
            candidate: the MindSpore side.
            noise: makes the PyTorch side in fp64, if that works.
        """
        if not self._wanted(judgement) or "F" not in reference.stages or "F" not in candidate.stages:
            return None
        forced = forward.forced(self.candidate, reference, self.folder / "forced", self.timeout_s)
        exact = noise() if judgement.stage.verdict is Verdict.FAIL else None
        mask = self.plan.batch["attention_mask"]
        evidence = Evidence(reference, candidate, forced, mask, self.tolerances, exact)
        directories = self.plan.job.directory, self.candidate.directory
        own_config = None if directories[0] == directories[1] else read_config(directories[1])
        suspects = forward.suspects_of(self.plan.family, self.plan.config, own_config)
        found = forward.explained(judgement, evidence, suspects)
        _keep(report, "F", found)
        return forward.alone_stage("F", forced if isinstance(forced, str) else None, found) if self.force else None

    def backward(self, report: Report, judgement: Judgement) -> Stage | None:
        """Explains stage G; the verdict of the forced pass, where that was asked for.

        Args:
            report: gets facts.
            judgement: of stage G; gets findings.
        """
        if not self._wanted(judgement):
            return None
        out = self.folder / "backward"
        proof = backward.evidence(self.plan.job, self.candidate, out, self.tolerances, self.timeout_s)
        found = backward.explained(judgement, proof, suspects_of_cells(out))
        _keep(report, "G", found)
        return forward.alone_stage("G", proof if isinstance(proof, str) else None, found) if self.force else None

    def _wanted(self, judgement: Judgement) -> bool:
        verdict = judgement.stage.verdict
        return verdict is Verdict.FAIL or (self.force and verdict is Verdict.PASS)


def _keep(report: Report, stage: str, found: Explanation) -> None:
    if found.rows:
        report.facts[MODULES[stage]] = found.rows
        counts = Counter(row["verdict"] for row in found.rows)
        report.facts[f"{MODULES[stage]} judged"] = {**counts, "compared by the descent": found.looked_at}
