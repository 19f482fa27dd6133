"""Hides tokens of a batch for masked-language training (Devlin et al. 2019), anew each time a row comes by.

What is hidden depends on the seed and the position of the row in the training stream alone. So a resumed run hides the
same tokens, every layout does, and the next epoch hides others (dynamic masking, Liu et al. 2019).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from mappings.errors import UserError
from ms_models.data.masking_vocabulary import MaskingVocabulary
from ms_models.data.packing import IGNORED
from ms_models.data.records import TRAIN, VALIDATION

STREAMS = {TRAIN: 0, VALIDATION: 1}
Ints = np.ndarray[Any, np.dtype[np.integer[Any]]]


@dataclass(frozen=True)
class TokenMasking:
    """Chooses tokens, hides most of them, and labels them with what they were.

    Of the chosen tokens, `mask_share` become the mask token, `random_share` another token that is not special, and the
    others stay. Special tokens, padding and positions whose label is ignored are never chosen.
    """

    vocabulary: MaskingVocabulary
    seed: int
    rate: float = 0.15
    """Expected share of the tokens that are chosen."""
    mask_share: float = 0.8
    random_share: float = 0.1
    whole_words: bool = False
    """Whether words are chosen whole; what a word is, the vocabulary says."""

    def __post_init__(self) -> None:
        if not 0 < self.rate <= 1:
            raise UserError(f"masking: rate must be above 0 and at most 1, found {self.rate}")
        for name in ("mask_share", "random_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise UserError(f"masking: {name} must be between 0 and 1, found {getattr(self, name)}")
        # in tenths, 0.9 + 0.1 is 1
        if self.mask_share + self.random_share > 1 + 1e-9:
            total = self.mask_share + self.random_share
            raise UserError(f"masking: mask_share and random_share must add up to at most 1, found {total}")
        if self.whole_words:
            self.vocabulary.require_words()

    def __call__(self, batch: Mapping[str, Ints], positions: Ints, split: str = TRAIN) -> dict[str, Ints]:
        """A batch with hidden tokens; the given one is left alone.

        Args:
            batch: `input_ids`, `attention_mask` and `labels`, `[B, S]`; labels are those of the loader, of which only
                `IGNORED` matters.
            positions: `[B]`, of each row in the training stream; the number of the row in the validation split.
            split: the one that positions count in.

        Raises:
            UserError: a token outside of the vocabulary.
        """
        ids = batch["input_ids"]
        if ids.size and not 0 <= ids.min() <= ids.max() < self.vocabulary.size:
            raise UserError(f"data: holds a token outside of the tokenizer's vocabulary of {self.vocabulary.size}")
        draws = [self._draw(int(position), ids.shape[1], split) for position in np.asarray(positions)]
        pick, act, other = (np.stack(parts) for parts in zip(*draws, strict=True))
        if self.whole_words:
            pick = np.take_along_axis(pick, self.vocabulary.first_of_word(ids), 1)
        may = (batch["attention_mask"] != 0) & (batch["labels"] != IGNORED) & ~self.vocabulary.is_special[ids]
        chosen = may & (pick < self.rate)
        hidden = chosen & (act < self.mask_share)
        replaced = chosen & ~hidden & (act < self.mask_share + self.random_share)
        masked = np.where(hidden, self.vocabulary.mask_id, np.where(replaced, self.vocabulary.ordinary[other], ids))
        return {
            **batch,
            "input_ids": masked.astype(ids.dtype),
            "labels": np.where(chosen, ids, IGNORED).astype(ids.dtype),
        }

    def _draw(self, position: int, length: int, split: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """For every token of a row: two numbers in [0, 1), and one below the number of ordinary tokens."""
        generator = np.random.default_rng([self.seed, STREAMS[split], position])
        pick, act = generator.random((2, length))
        return pick, act, generator.integers(len(self.vocabulary.ordinary), size=length)
