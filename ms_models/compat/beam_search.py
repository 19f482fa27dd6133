"""Beam search: the live beams of every row of a batch, and the best sequences that are complete."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from mindspore import Tensor

from .generation_config import GenerationConfig
from .random import multinomial

Array = np.ndarray[Any, Any]
_NEVER = np.float32(-1.0e9)
"""Added to the score of what must not be chosen."""


class BeamSearch:
    """State of a search; scores are sums of logarithms, of complete sequences over `length ** length_penalty`."""

    def __init__(self, ids: Array, options: GenerationConfig, fill: int) -> None:
        """Begin.

        Args:
            ids: prompts `[batch * beams, length]`, each repeated for its beams.
            options: with the final `max_length`.
            fill: token behind the end of a sequence.
        """
        self.options, self.beams = options, int(options.num_beams)
        self.prompt = self.length = ids.shape[1]
        rows = len(ids) // self.beams
        ends = 0 if options.eos_token_id is None else len(np.atleast_1d(options.eos_token_id))
        # So many candidates that enough remain when the best of them end.
        self.candidates = max(2, 1 + ends) * self.beams
        self.tokens = np.full((rows, self.beams, options.max_length), fill, np.int64)
        self.tokens[:, :, : self.length] = ids.reshape(rows, self.beams, -1)
        self.origins = np.full((rows, self.beams, options.max_length - self.length), -1, np.int32)
        self.scores = np.full((rows, self.beams), _NEVER, np.float32)
        self.scores[:, 0] = 0  # the beams are alike at first, so one of them counts
        self.done_tokens, self.done_origins = self.tokens.copy(), self.origins.copy()
        self.done_scores = np.full((rows, self.beams), _NEVER, np.float32)
        self.done = np.zeros((rows, self.beams), bool)
        self.improvable = np.ones((rows, 1), bool)

    def live(self) -> Array:
        """Ids of the live beams `[batch * beams, length]`."""
        return self.tokens[:, :, : self.length].reshape(-1, self.length)

    def sources(self) -> Array:
        """For each live beam the beam of the step before that it continues, `[batch * beams]`."""
        return self.origins[:, :, self.length - self.prompt - 1].reshape(-1)

    def advance(self, logarithms: Array, stops: Callable[[Array], Array]) -> bool:
        """One token more.

        Args:
            logarithms: of the probabilities of the next token, `[batch * beams, vocab]`.
            stops: whether sequences `[n, length]` are complete.

        Returns:
            Whether the search goes on.
        """
        rows, vocab = len(self.tokens), logarithms.shape[-1]
        total = (logarithms.reshape(rows, self.beams, vocab) + self.scores[:, :, None]).reshape(rows, -1)
        chosen = self._drawn(total) if self.options.do_sample else _best(total, self.candidates)
        scores = np.take_along_axis(total, chosen, 1)
        beam = chosen // vocab
        tokens, origins = _picked(self.tokens, beam), _picked(self.origins, beam)
        tokens[:, :, self.length] = chosen % vocab
        origins[:, :, self.length - self.prompt] = beam + np.arange(rows)[:, None] * self.beams
        ended = stops(tokens[:, :, : self.length + 1].reshape(rows * self.candidates, -1)).reshape(rows, -1)

        running = scores + ended * _NEVER
        kept = _best(running, self.beams)
        self.tokens, self.origins, self.scores = (_picked(each, kept) for each in (tokens, origins, running))
        self._finish(tokens, origins, scores, ended)
        self.length += 1
        self._look_ahead()
        full = self.options.early_stopping is True and bool(self.done.all())
        return bool(self.improvable.any()) and not full and not bool(ended.all())

    def _drawn(self, total: Array) -> Array:
        """Candidates drawn without replacement, the best first."""
        powers = np.exp(total - total.max(-1, keepdims=True))
        drawn = multinomial(Tensor(powers / powers.sum(-1, keepdims=True)), self.candidates).asnumpy()
        order = np.argsort(-np.take_along_axis(total, drawn, 1), axis=1, kind="stable")
        return np.take_along_axis(drawn, order, 1)

    def _finish(self, tokens: Array, origins: Array, scores: Array, ended: Array) -> None:
        """Complete sequences among the best candidates compete with those from before."""
        finished = ended & (np.arange(self.candidates) < self.beams)
        scores = scores / np.float32((self.length + 1 - self.prompt) ** self.options.length_penalty)
        full = self.done.all(1, keepdims=True) & (self.options.early_stopping is True)
        for excluded in (full, ~self.improvable, ~finished):
            scores = scores + excluded * _NEVER
        merged = np.concatenate((self.done_scores, scores), 1)
        kept = _best(merged, self.beams)
        self.done_tokens = _picked(np.concatenate((self.done_tokens, tokens), 1), kept)
        self.done_origins = _picked(np.concatenate((self.done_origins, origins), 1), kept)
        self.done = _picked(np.concatenate((self.done, finished), 1), kept)
        self.done_scores = _picked(merged, kept)

    def _look_ahead(self) -> None:
        """Whether a live beam may still become better than the worst complete sequence of its row."""
        penalty = self.options.length_penalty
        far = self.options.early_stopping == "never" and penalty > 0
        length = (self.options.max_length if far else self.length) - self.prompt
        best = self.scores[:, :1] / np.float32(length**penalty)
        worst = np.where(self.done, self.done_scores.min(1, keepdims=True), _NEVER)
        self.improvable &= (best > worst).any(1, keepdims=True)

    def result(self, number: int) -> tuple[Array, Array, Array]:
        """Ids, scores and origins of the best `number` sequences of each row, without what no sequence reaches."""
        origins = self.done_origins[:, :number].reshape(-1, self.done_origins.shape[-1])
        new = int((origins >= 0).sum(1).max())
        tokens = self.done_tokens[:, :number].reshape(len(origins), -1)[:, : self.prompt + new]
        return tokens, self.done_scores[:, :number].reshape(-1), origins[:, :new]


def log_softmax(logits: Tensor) -> Tensor:
    """Logarithms of the probabilities."""
    values = logits.asnumpy()
    shifted = values - values.max(-1, keepdims=True)
    return Tensor(shifted - np.log(np.exp(shifted).sum(-1, keepdims=True)))


def _best(scores: Array, number: int) -> Array:
    """Positions of the highest scores of each row, the highest first."""
    return np.argsort(-scores, axis=1, kind="stable")[:, :number]


def _picked(values: Array, positions: Array) -> Array:
    """`values[row, positions[row]]`."""
    return values[np.arange(len(values))[:, None], positions]
