"""Section `masking`: which tokens a masked language model has to guess."""

from __future__ import annotations

from dataclasses import dataclass

from mappings.errors import UserError
from ms_models.train.config.bounds import number


@dataclass(frozen=True)
class MaskingConfig:
    """For models whose task is `masked` (BERT and its relatives). What is hidden follows from `train.seed`."""

    rate: float = number(0.15, above=0, most=1)
    """Expected share of the ordinary tokens that are to be guessed."""
    mask_share: float = number(0.8, least=0, most=1)
    """Share of these that the model sees as the mask token."""
    random_share: float = number(0.1, least=0, most=1)
    """Share of these that the model sees as another token; the rest is seen as it is."""
    whole_words: bool = False
    """Choose words whole; needs a tokenizer that marks where words begin."""
    lexicon: str | None = None
    """With `whole_words`: file of Chinese words, one a line; without it each Chinese character is a word."""

    def __post_init__(self) -> None:
        if self.mask_share + self.random_share > 1 + 1e-9:  # in tenths, 0.9 + 0.1 is 1
            raise UserError(
                f"config: 'masking.mask_share' {self.mask_share} and 'masking.random_share' {self.random_share} "
                "add up to more than 1"
            )
        if self.lexicon is not None and not self.whole_words:
            raise UserError("config: 'masking.lexicon' needs masking.whole_words: true")
