"""`Validation`: everything a run does at an evaluation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ms_models.data.loader import Batch, validation_batches
from ms_models.data.records import VALIDATION, PreparedData
from ms_models.parallel.mesh import Mesh
from ms_models.train.batches import prepared_validation
from ms_models.train.config import RunConfig
from ms_models.train.evaluation import Evaluation, combined, without_dropout
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
        """What metrics.jsonl gets of an evaluation after a step. Every rank calls it.

        Of a blend, each source is evaluated on its own, and all together: `eval_loss/NAME` beside `eval_loss`.
        """
        with without_dropout(self._subject.model):
            found = {name: self._over(batches) for name, batches in self._splits()}
            samples = self._sampler.samples(step)
        record = {"step": step, **combined(list(found.values())).record()}
        if len(found) > 1:
            record |= {f"{key}/{name}": value for name, one in found.items() for key, value in one.record().items()}
        return {**record, **({"samples": samples} if samples else {})}

    def _over(self, batches: Iterable[Batch]) -> Evaluation:
        share = _Share(self._config.layout.dp, self._mesh.coordinates["dp"])
        return self._evaluate(prepared_validation(self._subject, batches, share))

    def _splits(self) -> Iterator[tuple[str, Iterable[Batch]]]:
        """The validation rows of each source, under its name."""
        limit = self._config.train.eval_sequences
        if self._subject.loader is not None:
            yield "", self._subject.loader.validation(limit)
            return
        parts = self._config.data_parts
        for number, rows in enumerate(validation_rows([directory for directory, _ in parts], limit)):
            if rows or len(parts) == 1:
                batches = validation_batches(
                    parts[number : number + 1],
                    micro_batch_size=self._config.train.micro_batch_size,
                    dp=self._config.layout.dp,
                    dp_rank=self._mesh.coordinates["dp"],
                    limit=rows,
                )
                yield _name(number, [directory for directory, _ in parts]), batches


def validation_rows(directories: Sequence[Path], limit: int | None) -> list[int]:
    """How many validation rows are taken from each source, where a row of each is taken in turn up to a limit."""
    have = [PreparedData.read(directory).splits[VALIDATION].rows for directory in directories]
    if limit is None or limit >= sum(have):
        return have
    taken = [0] * len(have)
    while limit:
        for number, rows in enumerate(have):
            if limit and taken[number] < rows:
                taken[number] += 1
                limit -= 1
    return taken


def _name(number: int, directories: Sequence[Path]) -> str:
    """Of a source: its directory's, with its number where that is another one's, too."""
    names = [directory.resolve().name for directory in directories]
    return names[number] if names.count(names[number]) == 1 else f"{names[number]}_{number}"
