"""`RepositoryLoader`: batches that a function of the converted repository yields, dealt out to the ranks."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from itertools import islice
from types import SimpleNamespace
from typing import Any

import numpy as np

from mappings.errors import UserError
from ms_models.data.loader import Batch
from ms_models.data.order import batch_positions
from ms_models.train.adapter.repository import Repository
from ms_models.train.adapter.wording import kind_of
from ms_models.train.config import RunConfig

WHERE = "model.adapter.batches"
Row = tuple[np.ndarray, np.ndarray]
"""Token ids and labels, `[S]` int32 each."""


class RepositoryLoader:
    """Micro-batches of one data-parallel rank; stands for `ms_models.data.loader.TrainingLoader`.

    Every rank reads every row and takes its own, so the function needs to know nothing about ranks, and the global
    batch of a step is the same rows in every layout.

    Args:
        config: of the run.
        repository: has the function.
        dp_rank: of this rank.

    Raises:
        UserError: the function is missing or does not take its arguments.
    """

    def __init__(self, config: RunConfig, repository: Repository, dp_rank: int) -> None:
        assert config.model.adapter is not None and config.model.adapter.batches is not None
        self.config, self.repository = config.model.adapter.batches, repository
        self.ignored = config.model.adapter.ignore_index
        self.micro_batch_size, self.accumulation = config.train.micro_batch_size, config.train.accumulation
        self.dp, self.dp_rank, self.global_batch = config.layout.dp, dp_rank, config.global_batch
        self.position = 0
        """Rows read by all steps so far; the next one is the first of the next step."""
        self.wait_s = 0.0
        """Seconds that the last `next_step` waited."""
        self._rows: Iterator[Row] | None = None
        self._read: list[Row] = []
        self.data = SimpleNamespace(seq_length=self.peek()["input_ids"].shape[1])

    def peek(self) -> Batch:
        """The first micro-batch of the next step."""
        return self._batch(self._take(self.micro_batch_size, keep=True))

    def next_step(self) -> list[Batch]:
        """The micro-batches of the next optimizer step; advances `position` by the global batch.

        Raises:
            UserError: the function yields no more rows.
        """
        start = time.perf_counter()
        rows = self._take(self.global_batch)
        chosen = batch_positions(
            0,
            1,
            micro_batch_size=self.micro_batch_size,
            accumulation=self.accumulation,
            dp=self.dp,
            dp_rank=self.dp_rank,
        )[0]
        self.position += self.global_batch
        self.wait_s = time.perf_counter() - start
        return [self._batch([rows[place] for place in places]) for places in chosen]

    def validation(self, limit: int | None) -> Iterator[Batch]:
        """The validation rows of this rank, as many batches on each; the last ones are filled up with rows whose labels
        are all ignored.

        Args:
            limit: take only the first this many rows; None takes all.

        Raises:
            UserError: the configuration names no validation batches, or there is no row.
        """
        if self.config.validation is None:
            raise UserError(f"{WHERE}.validation is not given, so there is nothing to evaluate on")
        rows = list(islice(self._rows_of(self._called(0), self.config.validation), limit))
        if not rows:
            raise UserError(f"{WHERE}: {self.config.function} yields no validation rows")
        count = -(-len(rows) // (self.dp * self.micro_batch_size)) * self.micro_batch_size
        own = rows[self.dp_rank :: self.dp]
        empty = rows[0][0], np.full_like(rows[0][1], self.ignored)
        own += [empty] * (count - len(own))
        for first in range(0, count, self.micro_batch_size):
            yield self._batch(own[first : first + self.micro_batch_size])

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps: how many rows were read of what."""
        return {"position": self.position, "function": self.config.function}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Goes on behind the rows of a checkpoint.

        Raises:
            UserError: the run began with batches of another function.
        """
        if state.get("function") != self.config.function:
            raise UserError(
                f"resume: batches came from {state.get('function') or 'prepared data'}, now from {self.config.function}"
            )
        self.position = state["position"]
        self._rows, self._read = None, []

    def _take(self, count: int, *, keep: bool = False) -> list[Row]:
        if self._rows is None:
            self._rows = self._rows_of(self._called(self.position), self.config.train)
            if self.config.position is None:
                for _ in islice(self._rows, self.position):
                    pass
        self._read += islice(self._rows, max(0, count - len(self._read)))
        if len(self._read) < count:
            raise UserError(
                f"{WHERE}: {self.config.function} yields no more rows after {self.position + len(self._read)}; make it "
                "endless, or lower train.steps"
            )
        rows = self._read[:count]
        if not keep:
            self._read = self._read[count:]
        return rows

    def _called(self, position: int) -> Any:
        arguments = dict(self.config.arguments)
        if self.config.position is not None:
            arguments[self.config.position] = position
        return self.repository.call(self.config.function, arguments, WHERE)

    def _rows_of(self, made: Any, select: int | None) -> Iterator[Row]:
        function = self.config.function
        if select is not None:
            if not isinstance(made, tuple | list) or select >= len(made):
                raise UserError(f"{WHERE}: {function} returns {kind_of(made)}, which has nothing at position {select}")
            made = made[select]
        try:
            batches = iter(made)
        except TypeError as error:
            raise UserError(f"{WHERE}: {function} returns {kind_of(made)}, which yields no batches") from error
        for batch in batches:
            if not isinstance(batch, tuple | list) or len(batch) != 2:
                raise UserError(f"{WHERE}: {function} yields {kind_of(batch)}, expected (inputs, labels)")
            inputs, labels = (_integers(value, function) for value in batch)
            if inputs.ndim != 2 or inputs.shape != labels.shape:
                raise UserError(
                    f"{WHERE}: {function} yields inputs {list(inputs.shape)} and labels {list(labels.shape)}, expected "
                    "[B, S] each"
                )
            yield from zip(inputs, labels, strict=True)

    def _batch(self, rows: list[Row]) -> Batch:
        lengths = sorted({len(row) for row, _ in rows})
        if len(lengths) > 1:
            raise UserError(f"{WHERE}: {self.config.function} yields rows of {lengths} tokens; pad them to one length")
        inputs, labels = (np.stack(part) for part in zip(*rows, strict=True))
        return {"input_ids": inputs, "attention_mask": np.ones_like(inputs), "labels": labels}


def _integers(value: Any, function: str) -> np.ndarray:
    array = np.array(value.asnumpy() if hasattr(value, "asnumpy") else value)
    if not np.issubdtype(array.dtype, np.integer):
        raise UserError(f"{WHERE}: {function} yields numbers of type {array.dtype}, expected integers")
    if array.size and (array.max() > np.iinfo(np.int32).max or array.min() < np.iinfo(np.int32).min):
        raise UserError(f"{WHERE}: {function} yields numbers beyond 32 bits")
    return array.astype(np.int32)
