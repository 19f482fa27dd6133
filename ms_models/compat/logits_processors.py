"""Changes of the scores of the next token: penalties, bans, temperature and the cuts of sampling.

Each takes the ids so far `[batch, length]` and the scores `[batch, vocab]`, and gives new scores. They compute on the
host, where the ids are needed anyway.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from mindspore import Tensor

Array = np.ndarray[Any, Any]


class LogitsProcessor:
    """Base of all; a class of the user defines `__call__`."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """New scores."""
        return Tensor(self.changed(input_ids.asnumpy(), scores.asnumpy().copy()), scores.dtype)

    def changed(self, ids: Array, scores: Array) -> Array:
        """The same for arrays; `scores` may be written to."""
        raise NotImplementedError(f"{type(self).__name__} has to define __call__")


class LogitsProcessorList(list):
    """One after the other."""

    def __call__(self, input_ids: Tensor, scores: Tensor, **kwargs: Any) -> Tensor:
        for processor in self:
            scores = processor(input_ids, scores, **kwargs)
        return scores


class RepetitionPenaltyLogitsProcessor(LogitsProcessor):
    """Scores of tokens that occurred are divided by the penalty, or multiplied where they are negative."""

    def __init__(self, penalty: float, prompt_ignore_length: Any = None) -> None:
        if not isinstance(penalty, float) or penalty <= 0:
            raise ValueError(f"`penalty` has to be a strictly positive float, but is {penalty}")
        self.penalty, self.prompt_ignore_length = penalty, prompt_ignore_length

    def changed(self, ids: Array, scores: Array) -> Array:
        seen = np.zeros((scores.shape[0], scores.shape[1] + 1), bool)  # the last column takes what does not count
        ignored = self.prompt_ignore_length
        if ignored is not None:
            lengths = ignored.asnumpy() if isinstance(ignored, Tensor) else np.full(len(ids), ignored)
            ids = np.where(np.arange(ids.shape[1]) < lengths[:, None], scores.shape[1], ids)
        np.put_along_axis(seen, np.minimum(ids, scores.shape[1]), True, 1)
        penalty = np.float32(self.penalty)
        return np.where(seen[:, :-1], np.where(scores < 0, scores * penalty, scores / penalty), scores)


class NoRepeatNGramLogitsProcessor(LogitsProcessor):
    """No sequence of `ngram_size` tokens occurs twice."""

    def __init__(self, ngram_size: int) -> None:
        if not isinstance(ngram_size, int) or ngram_size <= 0:
            raise ValueError(f"`ngram_size` has to be a strictly positive integer, but is {ngram_size}")
        self.ngram_size = ngram_size

    def changed(self, ids: Array, scores: Array) -> Array:
        size = self.ngram_size
        for row, tokens in enumerate(ids.tolist()):
            end = tokens[len(tokens) + 1 - size :]
            for start in range(len(tokens) - size + 1):
                if tokens[start : start + size - 1] == end and tokens[start + size - 1] < scores.shape[1]:
                    scores[row, tokens[start + size - 1]] = -math.inf
        return scores


class NoBadWordsLogitsProcessor(LogitsProcessor):
    """The last token of a forbidden sequence is banned where the others stand."""

    def __init__(self, bad_words_ids: Sequence[Sequence[int]], eos_token_id: Any = None) -> None:
        ends = _ids(eos_token_id)
        self.words = [list(word) for word in bad_words_ids if not (len(word) == 1 and word[0] in ends)]

    def changed(self, ids: Array, scores: Array) -> Array:
        for row, tokens in enumerate(ids.tolist()):
            for *begin, last in self.words:
                if tokens[len(tokens) - len(begin) :] == begin:
                    scores[row, last] = -math.inf
        return scores


class MinLengthLogitsProcessor(LogitsProcessor):
    """No end before the sequence has `min_length` tokens."""

    def __init__(self, min_length: int, eos_token_id: Any, device: Any = None) -> None:
        self.min_length, self.eos_token_id = min_length, _ids(eos_token_id)

    def changed(self, ids: Array, scores: Array) -> Array:
        if ids.shape[1] < self.min_length:
            scores[:, _inside(self.eos_token_id, scores)] = -math.inf
        return scores


class MinNewTokensLengthLogitsProcessor(MinLengthLogitsProcessor):
    """No end before `min_new_tokens` tokens follow the prompt."""

    def __init__(self, prompt_length_to_skip: int, min_new_tokens: int, eos_token_id: Any, device: Any = None) -> None:
        super().__init__(prompt_length_to_skip + min_new_tokens, eos_token_id)


class PrefixConstrainedLogitsProcessor(LogitsProcessor):
    """Only the tokens that a function of the row and its ids allows."""

    def __init__(self, prefix_allowed_tokens_fn: Callable[[int, Tensor], list[int]], num_beams: int) -> None:
        self.allowed, self.num_beams = prefix_allowed_tokens_fn, num_beams

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        mask = np.full(scores.shape, -math.inf, np.float32)
        for row in range(len(mask)):
            allowed = self.allowed(row // self.num_beams, input_ids[row])
            if not allowed:
                raise ValueError(f"prefix_allowed_tokens_fn allows no token for row {row // self.num_beams}")
            mask[row, allowed] = 0
        changed = scores.asnumpy() + mask
        # Where other rules have banned all that is allowed, what is allowed goes first.
        banned = np.isneginf(changed.max(-1)).reshape(-1, self.num_beams).all(-1).repeat(self.num_beams)
        return Tensor(np.where(banned[:, None], mask, changed), scores.dtype)


class ForcedBOSTokenLogitsProcessor(LogitsProcessor):
    """The first generated token of a decoder is given."""

    def __init__(self, bos_token_id: int) -> None:
        self.token, self.length = [bos_token_id], 1

    def changed(self, ids: Array, scores: Array) -> Array:
        if ids.shape[1] == self.length:
            scores[:] = -math.inf
            scores[:, self.token] = 0
        return scores


class ForcedEOSTokenLogitsProcessor(ForcedBOSTokenLogitsProcessor):
    """The last token that `max_length` leaves room for is an end."""

    def __init__(self, max_length: int, eos_token_id: Any, device: Any = None) -> None:
        self.token, self.length = _ids(eos_token_id), max_length - 1


class InfNanRemoveLogitsProcessor(LogitsProcessor):
    """Numbers instead of infinities and NaN."""

    def changed(self, ids: Array, scores: Array) -> Array:
        return np.nan_to_num(scores, nan=0.0)


class SuppressTokensLogitsProcessor(LogitsProcessor):
    """Some tokens never."""

    def __init__(self, suppress_tokens: Any, device: Any = None) -> None:
        self.tokens = _ids(suppress_tokens)

    def changed(self, ids: Array, scores: Array) -> Array:
        scores[:, _inside(self.tokens, scores)] = -math.inf
        return scores


class SuppressTokensAtBeginLogitsProcessor(SuppressTokensLogitsProcessor):
    """Some tokens not as the first generated one."""

    def __init__(self, begin_suppress_tokens: Any, begin_index: int, device: Any = None) -> None:
        super().__init__(begin_suppress_tokens)
        self.begin_index = begin_index

    def changed(self, ids: Array, scores: Array) -> Array:
        return super().changed(ids, scores) if ids.shape[1] == self.begin_index else scores


class LogitNormalization(LogitsProcessor):
    """Scores become logarithms of probabilities."""

    def changed(self, ids: Array, scores: Array) -> Array:
        return _log_softmax(scores)


# -- sampling
class TemperatureLogitsWarper(LogitsProcessor):
    """Scores divided by the temperature."""

    def __init__(self, temperature: float) -> None:
        if not isinstance(temperature, float) or temperature <= 0:
            raise ValueError(
                f"`temperature` (={temperature}) has to be a strictly positive float; set do_sample=False for greedy"
            )
        self.temperature = temperature

    def changed(self, ids: Array, scores: Array) -> Array:
        return scores / np.float32(self.temperature)


class _Cut(LogitsProcessor):
    """Tokens that are left out get `filter_value`; the best `min_tokens_to_keep` stay."""

    def __init__(self, amount: float, filter_value: float = -math.inf, min_tokens_to_keep: int = 1) -> None:
        if not isinstance(min_tokens_to_keep, int) or min_tokens_to_keep < 1:
            raise ValueError(f"`min_tokens_to_keep` has to be a positive integer, but is {min_tokens_to_keep}")
        self.amount, self.filter_value, self.min_tokens_to_keep = amount, filter_value, min_tokens_to_keep

    def changed(self, ids: Array, scores: Array) -> Array:
        out = self.outside(scores)
        best = np.argsort(-scores, axis=-1, kind="stable")[:, : self.min_tokens_to_keep]
        np.put_along_axis(out, best, False, -1)
        return np.where(out, np.float32(self.filter_value), scores)

    def outside(self, scores: Array) -> Array:
        """Which tokens are left out."""
        raise NotImplementedError


class TopKLogitsWarper(_Cut):
    """The `top_k` best tokens, and what is as good as the last of them."""

    def __init__(self, top_k: int, filter_value: float = -math.inf, min_tokens_to_keep: int = 1) -> None:
        if not isinstance(top_k, int) or top_k <= 0:
            raise ValueError(f"`top_k` has to be a strictly positive integer, but is {top_k}")
        super().__init__(max(top_k, min_tokens_to_keep), filter_value, min_tokens_to_keep)

    def outside(self, scores: Array) -> Array:
        number = min(int(self.amount), scores.shape[-1])
        return scores < -np.sort(-scores, axis=-1)[:, number - 1 : number]


class TopPLogitsWarper(_Cut):
    """The best tokens whose probabilities together reach `top_p`."""

    def __init__(self, top_p: float, filter_value: float = -math.inf, min_tokens_to_keep: int = 1) -> None:
        if not 0 <= top_p <= 1.0:
            raise ValueError(f"`top_p` has to be a float > 0 and < 1, but is {top_p}")
        super().__init__(float(top_p), filter_value, min_tokens_to_keep)

    def outside(self, scores: Array) -> Array:
        order = np.argsort(scores, axis=-1, kind="stable")
        reached = np.cumsum(_softmax(np.take_along_axis(scores, order, -1)), axis=-1)
        out = np.zeros(scores.shape, bool)
        np.put_along_axis(out, order, reached <= 1 - self.amount, -1)
        return out


class MinPLogitsWarper(_Cut):
    """Tokens that are at least `min_p` times as likely as the best."""

    def __init__(self, min_p: float, filter_value: float = -math.inf, min_tokens_to_keep: int = 1) -> None:
        if not 0 <= min_p <= 1.0:
            raise ValueError(f"`min_p` has to be a float in the [0, 1] interval, but is {min_p}")
        super().__init__(min_p, filter_value, min_tokens_to_keep)

    def outside(self, scores: Array) -> Array:
        probabilities = _softmax(scores)
        return probabilities < np.float32(self.amount) * probabilities.max(-1, keepdims=True)


class EpsilonLogitsWarper(_Cut):
    """Tokens with a probability of at least `epsilon`."""

    def __init__(self, epsilon: float, filter_value: float = -math.inf, min_tokens_to_keep: int = 1) -> None:
        if not 0 < epsilon < 1:
            raise ValueError(f"`epsilon_cutoff` has to be a float > 0 and < 1, but is {epsilon}")
        super().__init__(float(epsilon), filter_value, min_tokens_to_keep)

    def outside(self, scores: Array) -> Array:
        return _softmax(scores) < self.amount


class TypicalLogitsWarper(_Cut):
    """Tokens whose information is nearest to the entropy, with probabilities that together reach `mass`."""

    def __init__(self, mass: float = 0.9, filter_value: float = -math.inf, min_tokens_to_keep: int = 1) -> None:
        if not 0 < mass < 1:
            raise ValueError(f"`typical_p` has to be a float > 0 and < 1, but is {mass}")
        super().__init__(float(mass), filter_value, min_tokens_to_keep)

    def changed(self, ids: Array, scores: Array) -> Array:
        logarithms = _log_softmax(scores)
        probabilities = np.exp(logarithms)
        entropy = -np.nansum(logarithms * probabilities, -1, keepdims=True)
        distance = np.abs(-logarithms - entropy)
        order = np.argsort(distance, axis=-1, kind="stable")
        ordered = np.take_along_axis(distance, order, -1)
        reached = np.cumsum(_softmax(np.take_along_axis(scores, order, -1)), axis=-1)
        last = np.minimum((reached < self.amount).sum(-1, keepdims=True), scores.shape[-1] - 1)
        beyond = ordered > np.take_along_axis(ordered, last, -1)
        beyond[:, : self.min_tokens_to_keep] = False
        out = np.zeros(scores.shape, bool)
        np.put_along_axis(out, order, beyond, -1)
        return np.where(out, np.float32(self.filter_value), scores)


def _ids(tokens: Any) -> list[int]:
    if tokens is None:
        return []
    if isinstance(tokens, Tensor):
        tokens = tokens.asnumpy()
    return [int(token) for token in np.atleast_1d(tokens)]


def _inside(tokens: list[int], scores: Array) -> list[int]:
    return [token for token in tokens if 0 <= token < scores.shape[1]]


def _log_softmax(scores: Array) -> Array:
    shifted = scores - scores.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def _softmax(scores: Array) -> Array:
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)
