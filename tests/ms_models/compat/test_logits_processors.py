"""Changes of the scores, values against transformers' own."""

from __future__ import annotations

from typing import Any

import mindspore as ms
import numpy as np
import pytest
import torch
import transformers.generation.logits_process as reference
from mindspore import Tensor

from ms_models.compat import logits_processors as ours

VOCAB = 37
RNG = np.random.default_rng(5)
SCORES = (3 * RNG.standard_normal((3, VOCAB))).astype(np.float32)
IDS = RNG.integers(0, VOCAB, (3, 9))
IDS[0, 5:7] = IDS[0, 1:3]  # a pair that occurs twice
IDS[0, 8] = IDS[0, 1]

CASES: list[tuple[str, tuple[Any, ...]]] = [
    ("RepetitionPenaltyLogitsProcessor", (1.7,)),
    ("RepetitionPenaltyLogitsProcessor", (0.6, 4)),
    ("NoRepeatNGramLogitsProcessor", (2,)),
    ("NoRepeatNGramLogitsProcessor", (1,)),
    ("NoBadWordsLogitsProcessor", ([[3], [int(IDS[0, 8]), 7], [int(IDS[1, 7]), int(IDS[1, 8]), 9], [2]], [2])),
    ("MinLengthLogitsProcessor", (10, [2, 5])),
    ("MinLengthLogitsProcessor", (9, 2)),
    ("MinNewTokensLengthLogitsProcessor", (7, 3, 4)),
    ("MinNewTokensLengthLogitsProcessor", (7, 2, 4)),
    ("ForcedEOSTokenLogitsProcessor", (10, [4, 6])),
    ("ForcedEOSTokenLogitsProcessor", (11, 4)),
    ("SuppressTokensLogitsProcessor", ([1, 30],)),
    ("SuppressTokensAtBeginLogitsProcessor", ([1, 30], 9)),
    ("SuppressTokensAtBeginLogitsProcessor", ([1, 30], 8)),
    ("LogitNormalization", ()),
    ("InfNanRemoveLogitsProcessor", ()),
    ("TemperatureLogitsWarper", (0.7,)),
    ("TopKLogitsWarper", (5,)),
    ("TopKLogitsWarper", (1000,)),
    ("TopPLogitsWarper", (0.8,)),
    ("TopPLogitsWarper", (0.01,)),
    ("MinPLogitsWarper", (0.1,)),
    ("EpsilonLogitsWarper", (0.02,)),
    ("TypicalLogitsWarper", (0.7,)),
]


@pytest.mark.parametrize(("name", "arguments"), CASES, ids=lambda value: value if isinstance(value, str) else "")
def test_scores(name: str, arguments: tuple[Any, ...]) -> None:
    want = getattr(reference, name)(*arguments)(torch.tensor(IDS), torch.tensor(SCORES))
    have = getattr(ours, name)(*arguments)(Tensor(IDS), Tensor(SCORES))
    assert have.dtype == ms.float32
    # The logarithm of a softmax is rounded differently; everything else is selection, or one operation.
    np.testing.assert_allclose(have.asnumpy(), want.numpy(), 2e-6, 1e-6)


def test_scores_are_not_changed_in_place() -> None:
    scores = Tensor(SCORES)
    ours.MinLengthLogitsProcessor(20, [2])(Tensor(IDS), scores)
    np.testing.assert_array_equal(scores.asnumpy(), SCORES)


def test_padding_is_not_repeated() -> None:
    lengths = np.array([0, 2, 5])
    want = reference.RepetitionPenaltyLogitsProcessor(1.3, torch.tensor(lengths))(
        torch.tensor(IDS), torch.tensor(SCORES)
    )
    have = ours.RepetitionPenaltyLogitsProcessor(1.3, Tensor(lengths))(Tensor(IDS), Tensor(SCORES))
    np.testing.assert_allclose(have.asnumpy(), want.numpy(), 1e-6)


def test_infinities() -> None:
    scores = SCORES.copy()
    scores[0, 3], scores[1, 4], scores[2, 5] = np.inf, -np.inf, np.nan
    want = reference.InfNanRemoveLogitsProcessor()(torch.tensor(IDS), torch.tensor(scores)).numpy()
    np.testing.assert_array_equal(ours.InfNanRemoveLogitsProcessor()(Tensor(IDS), Tensor(scores)).asnumpy(), want)


def test_allowed_tokens() -> None:
    allowed = {0: [1, 2], 1: [5]}
    ids, scores = np.concatenate([IDS, IDS[:1]]), np.concatenate([SCORES, SCORES[:1]])
    scores[2:, 5] = -np.inf  # all that is allowed is banned already
    want = reference.PrefixConstrainedLogitsProcessor(lambda row, ids: allowed[row], 2)(
        torch.tensor(ids), torch.tensor(scores)
    )
    have = ours.PrefixConstrainedLogitsProcessor(lambda row, ids: allowed[row], 2)(Tensor(ids), Tensor(scores))
    np.testing.assert_allclose(have.asnumpy(), want.numpy(), 1e-6)


def test_wrong_values_are_refused() -> None:
    for make in (
        lambda: ours.TemperatureLogitsWarper(0.0),
        lambda: ours.TopKLogitsWarper(0),
        lambda: ours.TopPLogitsWarper(1.5),
        lambda: ours.RepetitionPenaltyLogitsProcessor(-1.0),
        lambda: ours.NoRepeatNGramLogitsProcessor(0),
    ):
        with pytest.raises(ValueError, match="has to be"):
            make()
