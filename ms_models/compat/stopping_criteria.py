"""When a generated sequence is complete."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from mindspore import Tensor


class StoppingCriteria:
    """Base of all; `__call__` gives one truth value for each sequence."""

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Any:
        """Whether each row of `input_ids` `[batch, length]` is complete."""
        raise NotImplementedError(f"{type(self).__name__} has to define __call__")


class MaxLengthCriteria(StoppingCriteria):
    """A number of tokens, those of the prompt included."""

    def __init__(self, max_length: int, max_position_embeddings: int | None = None) -> None:
        self.max_length, self.max_position_embeddings = max_length, max_position_embeddings

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Any:
        return Tensor(np.full(input_ids.shape[0], input_ids.shape[-1] >= self.max_length))


class MaxTimeCriteria(StoppingCriteria):
    """A number of seconds since a point in time, now by default."""

    def __init__(self, max_time: float, initial_timestamp: float | None = None) -> None:
        self.max_time = max_time
        self.initial_timestamp = time.time() if initial_timestamp is None else initial_timestamp

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Any:
        return Tensor(np.full(input_ids.shape[0], time.time() - self.initial_timestamp > self.max_time))


class EosTokenCriteria(StoppingCriteria):
    """The last token is one of the ends."""

    def __init__(self, eos_token_id: Any) -> None:
        ends = eos_token_id.asnumpy() if isinstance(eos_token_id, Tensor) else eos_token_id
        self.eos_token_id = [int(token) for token in np.atleast_1d(ends)]

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Any:
        return Tensor(np.isin(input_ids[:, -1].asnumpy(), self.eos_token_id))


class StopStringCriteria(StoppingCriteria):
    """The text ends with one of the strings, or with one of them and the rest of its last token."""

    def __init__(self, tokenizer: Any, stop_strings: str | list[str]) -> None:
        self.tokenizer = tokenizer
        self.stop_strings = [stop_strings] if isinstance(stop_strings, str) else list(stop_strings)

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Any:
        return Tensor(np.array([self._stopped(row) for row in input_ids.asnumpy().tolist()]))

    def _stopped(self, row: list[int]) -> bool:
        text, before = self.tokenizer.decode(row), self.tokenizer.decode(row[:-1])
        return any(stop in text[max(0, len(before) - len(stop) + 1) :] for stop in self.stop_strings)


class StoppingCriteriaList(list):
    """A sequence is complete when one of them says so."""

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Any:
        done = np.zeros(input_ids.shape[0], bool)
        for criterion in self:
            found = criterion(input_ids, scores, **kwargs)
            done |= np.asarray(found.asnumpy() if isinstance(found, Tensor) else found, bool)
        return Tensor(done)

    @property
    def max_length(self) -> int | None:
        """Of the `MaxLengthCriteria` among them."""
        return next((one.max_length for one in self if isinstance(one, MaxLengthCriteria)), None)
