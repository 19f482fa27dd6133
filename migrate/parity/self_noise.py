"""How far the reference is from itself: the same computation once more, in another order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from migrate.captures.compare import Difference, compare
from migrate.captures.store import Capture
from migrate.parity.judgement import TITLES, Judgement, could_not_run
from migrate.report import Verdict

NOISY = ("F", "L", "G")
"""Stages in which the order of sums can differ. Weights are copied; updates are made element by element."""
HOW = "rows of the batch in reverse, another number of threads"


@dataclass(frozen=True)
class SelfNoise:
    """Both runs of the reference."""

    reference: Capture
    again: Capture | str
    """The second run, or why there is none."""
    mask: np.ndarray

    def of(self, stage: str, names: Sequence[str]) -> list[Difference]:
        """What the second run differs by, tensor by tensor.

        Args:
            stage: one that both runs have.
            names: of the tensors; none for the loss.
        """
        assert isinstance(self.again, Capture)
        mask = self.mask if stage == "F" else None
        with self.reference.reader(stage) as first, self.again.reader(stage) as second:
            return [compare(name, first(name), second(name), mask) for name in names or ("loss",)]

    def check(self, judgement: Judgement, stage: str, names: Sequence[str]) -> Judgement:
        """The judgement of a stage, or that it means nothing: a bound is below what the reference is off from itself.

        Args:
            judgement: with a row for each tensor.
            stage: which.
            names: of its tensors.
        """
        if stage not in NOISY or judgement.stage.verdict is Verdict.COULD_NOT_RUN or not judgement.rows:
            return judgement
        if isinstance(self.again, str) or stage not in self.again.stages:
            why = self.again if isinstance(self.again, str) else self.again.errors.get(stage, "it did not get there")
            return could_not_run(stage, f"PyTorch's own noise is not known: the second run ended before it: {why}")
        limits: Mapping[str, float] = {row["name"]: row["limit"] for row in judgement.rows}
        found = self.of(stage, names)
        above = [one for one in found if one.problem is not None or not one.relative <= limits.get(one.name, np.inf)]
        if above:
            worst = max(above, key=lambda one: one.relative)
            limit = limits.get(worst.name, np.inf)
            return could_not_run(
                stage,
                f"{worst.name}: PyTorch differs from itself by {worst.relative:.2g} ({HOW}), the bound is {limit:.2g}; "
                "a comparison below the noise of its reference says nothing: raise the bound",
            )
        figures = {**judgement.stage.figures, "own noise of PyTorch": max(one.relative for one in found)}
        return replace(judgement, stage=replace(judgement.stage, figures=figures))

    def facts(self, names: Mapping[str, Sequence[str]]) -> dict[str, Any]:
        """For the report: by stage the tensor that differs most between the two runs, and by how much.

        Args:
            names: of the tensors of each stage.
        """
        if isinstance(self.again, str):
            return {"how": HOW, "not measured": self.again}
        found: dict[str, Any] = {"how": HOW}
        for stage, tensors in names.items():
            if stage in NOISY and stage in self.again.stages and stage in self.reference.stages:
                worst = max(self.of(stage, tensors), key=lambda one: one.relative)
                found[TITLES[stage]] = {"tensor": worst.name, "relative": float(worst.relative)}
        return found
