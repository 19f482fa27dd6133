"""`Validation`: everything a run does at an evaluation."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ms_models.data.loader import Batch, validation_batches
from ms_models.parallel.mesh import Mesh
from ms_models.train.batches import prepared_validation
from ms_models.train.config import RunConfig
from ms_models.train.evaluation import Evaluation, without_dropout
from ms_models.train.samples import Sampler
from ms_models.train.subject import Subject


@dataclass(frozen=True)
class _Share:
    """Which rows of the split this rank has."""

    dp: int
    dp_rank: int


class Validation:
    """Loss, perplexity and accuracy over the validation split, and samples; every rank has one.

    Args:
        config: of the run.
        mesh: of this rank.
        subject: the model, and what its batches need.
        evaluate: over the batches that all ranks hold together.
    """

    def __init__(
        self,
        config: RunConfig,
        mesh: Mesh,
        subject: Subject,
        evaluate: Callable[[Iterable[Batch]], Evaluation],
    ) -> None:
        self._config, self._mesh, self._subject, self._evaluate = config, mesh, subject, evaluate
        self._sampler = Sampler(config, subject.model)

    @property
    def refusal(self) -> str | None:
        """Why there are no samples though they were asked for."""
        return self._sampler.refusal

    def record(self, step: int) -> dict[str, Any]:
        """What metrics.jsonl gets of an evaluation after a step. Every rank calls it."""
        dp, rank, limit = self._config.layout.dp, self._mesh.coordinates["dp"], self._config.train.eval_sequences
        if self._subject.loader is not None:
            batches = self._subject.loader.validation(limit)
        else:
            batches = validation_batches(
                self._config.data_parts,
                micro_batch_size=self._config.train.micro_batch_size,
                dp=dp,
                dp_rank=rank,
                limit=limit,
            )
        with without_dropout(self._subject.model):
            found = self._evaluate(prepared_validation(self._subject, batches, _Share(dp, rank))).record()
            samples = self._sampler.samples(step)
        return {"step": step, **found, **({"samples": samples} if samples else {})}
