"""Batches as the model of a run reads them, with the positions of their rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

import numpy as np

from ms_models.data.loader import Batch, TrainingLoader
from ms_models.data.order import batch_positions
from ms_models.data.records import TRAIN, VALIDATION
from ms_models.train.subject import Subject


class Share(Protocol):
    """Which part of the data a rank has: a loader, for one."""

    @property
    def dp(self) -> int:
        """Data-parallel ranks."""

    @property
    def dp_rank(self) -> int:
        """This one of them."""


def prepared_step(subject: Subject, loader: TrainingLoader) -> list[Batch]:
    """The micro-batches of the next step; advances the loader."""
    batches = loader.next_step()
    positions = positions_of_last(loader)
    return [subject.prepare(batch, rows, TRAIN) for batch, rows in zip(batches, positions, strict=True)]


def positions_of_last(loader: TrainingLoader) -> np.ndarray:
    """`[accumulation, micro_batch_size]`: where the rows of this rank's last step are in the training stream."""
    return batch_positions(
        loader.position - loader.global_batch,
        1,
        micro_batch_size=loader.micro_batch_size,
        accumulation=loader.accumulation,
        dp=loader.dp,
        dp_rank=loader.dp_rank,
    )[0]


def prepared_validation(subject: Subject, batches: Iterable[Batch], share: Share) -> Iterator[Batch]:
    """The validation batches of a rank, which has each dp-th row of the split.

    Rows that fill up the last batch get numbers beyond the split; none of their labels counts.
    """
    for number, batch in enumerate(batches):
        size = len(batch["input_ids"])
        rows = (number * size + np.arange(size)) * share.dp + share.dp_rank
        yield subject.prepare(batch, rows, VALIDATION)
