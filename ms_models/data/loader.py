"""Reads prepared data: training batches in stream order from any position, and the validation split in file order.

Rows are read through `mindspore.dataset.MindDataset` with a list of row numbers. That gives exact random access, native
prefetching, and no state of its own: the position in the stream is the whole state. (`FileReader` reads from the start
only.)
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mappings.errors import UserError
from ms_models.data.order import SampleOrder, batch_positions
from ms_models.data.records import TRAIN, VALIDATION, PreparedData, Split
from ms_models.data.rows import FIELDS, IGNORED

Batch = Mapping[str, np.ndarray]
"""input_ids, attention_mask and labels, int32 [micro_batch_size, seq_length]."""
CHUNK_ROWS = 16384
"""Row numbers handed to one reading pipeline."""


class TrainingLoader:
    """Micro-batches of one data-parallel rank.

    The global batch of a step is `micro_batch_size * accumulation * dp` consecutive positions of the stream. `position`
    is the first position of the next step, the same on every rank.
    """

    def __init__(
        self,
        directory: Path,
        *,
        seed: int,
        micro_batch_size: int,
        accumulation: int = 1,
        dp: int = 1,
        dp_rank: int = 0,
        position: int = 0,
    ) -> None:
        self.data = PreparedData.read(directory)
        self.directory, self.seed = directory, seed
        self.micro_batch_size, self.accumulation = micro_batch_size, accumulation
        self.dp, self.dp_rank = dp, dp_rank
        self.global_batch = micro_batch_size * accumulation * dp
        self.position = position
        self.wait_s = 0.0
        """Seconds that the last `next_step` waited."""
        self._order = SampleOrder(self.data.splits[TRAIN].rows, seed)
        self._rows: Iterator[Batch] = iter(())
        self._remaining = 0

    def next_step(self) -> list[Batch]:
        """The micro-batches of the next optimizer step; advances `position` by the global batch."""
        start = time.perf_counter()
        if not self._remaining:
            self._open()
        batches = [next(self._rows) for _ in range(self.accumulation)]
        self._remaining -= 1
        self.position += self.global_batch
        self.wait_s = time.perf_counter() - start
        return batches

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps: where the run is in which data."""
        return {"position": self.position, "seed": self.seed, "rows": self._order.rows, "shards": self.data.fingerprint}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Goes on at the position of a checkpoint, which is of this data (`check_state`); dp may be another."""
        self.position = state["position"]
        self._rows, self._remaining = iter(()), 0

    @classmethod
    def check_state(cls, state: Mapping[str, Any], data: PreparedData, seed: int) -> None:
        """Refuses to go on in other data than the run began with.

        Raises:
            UserError: the seed or the shards differ.
        """
        if state["seed"] != seed:
            raise UserError(f"resume: train.seed was {state['seed']}, now it is {seed}; the order of data would change")
        if state["rows"] != data.splits[TRAIN].rows or state["shards"] != data.fingerprint:
            raise UserError("resume: the training data is not the one the run began with; point data.path to that one")

    def _open(self) -> None:
        steps = max(1, CHUNK_ROWS // (self.micro_batch_size * self.accumulation))
        positions = batch_positions(
            self.position,
            steps,
            micro_batch_size=self.micro_batch_size,
            accumulation=self.accumulation,
            dp=self.dp,
            dp_rank=self.dp_rank,
        )
        rows = self._order[positions].ravel()
        self._rows = _read(self.directory, self.data.splits[TRAIN], rows, self.micro_batch_size)
        self._remaining = steps


def validation_batches(
    directory: Path, *, micro_batch_size: int, dp: int = 1, dp_rank: int = 0, limit: int | None = None
) -> Iterator[Batch]:
    """The validation rows of one data-parallel rank; all ranks together read each row once, in as many batches each.

    Args:
        directory: prepared data.
        micro_batch_size: rows per batch; the last ones are filled up with rows whose labels are all ignored.
        dp: number of data-parallel ranks.
        dp_rank: this one.
        limit: take only the first this many rows of the split; None takes all.
    """
    split = PreparedData.read(directory).splits[VALIDATION]
    taken = split.rows if limit is None else min(limit, split.rows)
    rows = np.arange(taken, dtype=np.int64)[dp_rank::dp]
    # Ranks that share experts or parameters call each other in every forward pass: none may have a batch less.
    length = -(-taken // (dp * micro_batch_size)) * micro_batch_size
    padded = np.concatenate([rows, np.zeros(length - len(rows), np.int64)])
    for number, batch in enumerate(_read(directory, split, padded, micro_batch_size)):
        batch["labels"][max(0, len(rows) - number * micro_batch_size) :] = IGNORED
        yield batch


def _read(directory: Path, split: Split, rows: np.ndarray, batch_size: int) -> Iterator[dict[str, np.ndarray]]:
    """Batches of the given rows, in the given order. `len(rows)` must be a multiple of `batch_size`."""
    batch: list[Mapping[str, np.ndarray]] = []
    # A pipeline takes at most as many row numbers as there are rows.
    for start in range(0, len(rows), split.rows):
        for row in _rows(directory, split, rows[start : start + split.rows]):
            batch.append(row)
            if len(batch) == batch_size:
                yield {name: np.stack([row[name] for row in batch]) for name in FIELDS}
                batch = []


def _rows(directory: Path, split: Split, rows: np.ndarray) -> Iterator[Mapping[str, np.ndarray]]:
    import mindspore.dataset as ds

    files = [str(directory / name) for name in split.files if name.endswith(".mindrecord")]
    # One worker keeps the order of the list.
    reader = ds.MindDataset(
        files, columns_list=list(FIELDS), sampler=ds.SubsetSampler(rows.tolist()), num_parallel_workers=1
    )
    yield from reader.create_dict_iterator(num_epochs=1, output_numpy=True)
