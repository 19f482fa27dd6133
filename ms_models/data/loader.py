"""Reads prepared data: training batches in stream order from any position, and the validation split in file order.

The stream never ends: one epoch follows the other, also within a batch, so no remainder is dropped and no batch is
ever smaller. The position in the stream is the whole state.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mappings.errors import UserError
from ms_models.data.blend import BlendedOrder, Parts, described
from ms_models.data.order import batch_positions
from ms_models.data.prefetch import Prefetcher
from ms_models.data.records import TRAIN, VALIDATION, PreparedData
from ms_models.data.row_reader import RowReader
from ms_models.data.rows import IGNORED

Batch = Mapping[str, np.ndarray]
"""input_ids, attention_mask and labels, int32 [micro_batch_size, seq_length]."""
CHUNK_ROWS = 16384
"""Row numbers handed to one reading pipeline."""


class TrainingLoader:
    """Micro-batches of one data-parallel rank.

    The global batch of a step is `micro_batch_size * accumulation * dp` consecutive positions of the stream. `position`
    is the first position of the next step, the same on every rank; what was read ahead does not count.

    Args:
        data: a directory of prepared data, or several with their weights.
        seed: of the order.
        micro_batch_size: rows a batch.
        accumulation: batches a step.
        dp: number of data-parallel ranks.
        dp_rank: this one.
        position: where to begin.
        prefetch: steps that a thread reads ahead; 0 reads when asked.
    """

    def __init__(
        self,
        data: Path | Parts,
        *,
        seed: int,
        micro_batch_size: int,
        accumulation: int = 1,
        dp: int = 1,
        dp_rank: int = 0,
        position: int = 0,
        prefetch: int = 2,
    ) -> None:
        self.parts = _parts(data)
        self.data = described(self.parts)
        self.seed = seed
        self.micro_batch_size, self.accumulation = micro_batch_size, accumulation
        self.dp, self.dp_rank, self.prefetch = dp, dp_rank, prefetch
        self.global_batch = micro_batch_size * accumulation * dp
        self.position = position
        self.wait_s = 0.0
        """Seconds that the last `next_step` waited."""
        directories = [directory for directory, _ in self.parts]
        splits = [PreparedData.read(directory).splits[TRAIN] for directory in directories]
        self._order = BlendedOrder([split.rows for split in splits], [weight for _, weight in self.parts], seed)
        self._reader = RowReader(directories, splits)
        self._steps: Iterator[list[Batch]] | None = None

    def next_step(self) -> list[Batch]:
        """The micro-batches of the next optimizer step; advances `position` by the global batch.

        Raises:
            UserError: a shard is damaged.
        """
        start = time.perf_counter()
        if self._steps is None:
            steps = _steps(
                self._order,
                self._reader,
                self.position,
                micro_batch_size=self.micro_batch_size,
                accumulation=self.accumulation,
                dp=self.dp,
                dp_rank=self.dp_rank,
            )
            self._steps = Prefetcher(steps, self.prefetch) if self.prefetch else steps
        batches = next(self._steps)
        self.position += self.global_batch
        self.wait_s = time.perf_counter() - start
        return batches

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps: where the run is in which data."""
        return {
            "position": self.position,
            "seed": self.seed,
            "rows": self.data.splits[TRAIN].rows,
            "shards": self.data.fingerprint,
            "weights": _weights(self.data),
            "drawn": self._order.drawn(self.position),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Goes on at the position of a checkpoint, which is of this data (`check_state`); dp may be another."""
        self.close()
        self.position = state["position"]

    def close(self) -> None:
        """Ends the thread that reads ahead; the loader can be used again."""
        if isinstance(self._steps, Prefetcher):
            self._steps.close()
        self._steps = None

    @classmethod
    def check_state(cls, state: Mapping[str, Any], data: PreparedData, seed: int) -> None:
        """Refuses to go on in other data than the run began with.

        Raises:
            UserError: the seed, the shards or the weights of a blend differ.
        """
        if state["seed"] != seed:
            raise UserError(f"resume: train.seed was {state['seed']}, now it is {seed}; the order of data would change")
        if state["rows"] != data.splits[TRAIN].rows or state["shards"] != data.fingerprint:
            raise UserError("resume: the training data is not the one the run began with; point data.path to that one")
        if (before := state.get("weights", [])) != (now := _weights(data)):
            raise UserError(f"resume: the weights of data.blend were {before}, now they are {now}; restore those")


def _steps(
    order: BlendedOrder,
    reader: RowReader,
    position: int,
    *,
    micro_batch_size: int,
    accumulation: int,
    dp: int,
    dp_rank: int,
) -> Generator[list[Batch], None, None]:
    """The steps from a position on. It knows no loader: a thread that runs it must not keep its loader alive."""
    steps = max(1, CHUNK_ROWS // (micro_batch_size * accumulation))
    while True:
        positions = batch_positions(
            position, steps, micro_batch_size=micro_batch_size, accumulation=accumulation, dp=dp, dp_rank=dp_rank
        )
        sources, rows = order[positions.ravel()]
        batches = reader.batches(sources, rows, micro_batch_size)
        for _ in range(steps):
            yield [next(batches) for _ in range(accumulation)]
        position += steps * micro_batch_size * accumulation * dp


def validation_batches(
    data: Path | Parts, *, micro_batch_size: int, dp: int = 1, dp_rank: int = 0, limit: int | None = None
) -> Iterator[Batch]:
    """The validation rows of one data-parallel rank; all ranks together read each row once, in as many batches each.

    Of several directories, a row of each is taken in turn as long as it has one; their weights do not count.

    Args:
        data: a directory of prepared data, or several.
        micro_batch_size: rows per batch; the last ones are filled up with rows whose labels are all ignored.
        dp: number of data-parallel ranks.
        dp_rank: this one.
        limit: take only the first this many rows of the split; None takes all.
    """
    directories = [directory for directory, _ in _parts(data)]
    splits = [PreparedData.read(directory).splits[VALIDATION] for directory in directories]
    sources = np.concatenate([np.full(split.rows, number) for number, split in enumerate(splits)])
    rows = np.concatenate([np.arange(split.rows, dtype=np.int64) for split in splits])
    in_turn = np.argsort(rows, kind="stable")
    chosen = in_turn[: len(rows) if limit is None else limit]
    taken, mine = len(chosen), chosen[dp_rank::dp]
    # Ranks that share experts or parameters call each other in every forward pass: none may have a batch less.
    length = -(-taken // (dp * micro_batch_size)) * micro_batch_size
    padded = np.concatenate([mine, np.full(length - len(mine), in_turn[0] if taken else 0)])
    reader = RowReader(directories, splits)
    for number, batch in enumerate(reader.batches(sources[padded], rows[padded], micro_batch_size)):
        batch["labels"][max(0, len(mine) - number * micro_batch_size) :] = IGNORED
        yield batch


def _parts(data: Path | Parts) -> Parts:
    return ((data, 1.0),) if isinstance(data, Path) else data


def _weights(data: PreparedData) -> list[float]:
    """Of a blend; none of a single directory."""
    return [source["weight"] for source in data.sources if "weight" in source]
