"""`masking_of`: what hides the tokens of a masked language model in a run. Imports no MindSpore."""

from __future__ import annotations

from pathlib import Path

from mappings.errors import UserError
from ms_models.data.masking import TokenMasking
from ms_models.data.masking_vocabulary import MaskingVocabulary
from ms_models.train.config import RunConfig


def masking_of(config: RunConfig, vocabulary: int) -> TokenMasking:
    """The masking of a run: the same tokens in every layout and after a resume.

    Args:
        config: of the run; the tokenizer is that of `data.tokenizer`, else the model's.
        vocabulary: rows of the model's table.

    Raises:
        UserError: no tokenizer with a mask token, or one with more tokens than the model.
    """
    settings, source = config.masking, config.data.tokenizer or config.model.path
    assert source is not None, "a masked language model comes from a directory"
    lexicon = None if settings.lexicon is None else Path(settings.lexicon)
    known = MaskingVocabulary.read(Path(source), lexicon)
    if known.size > vocabulary:
        raise UserError(f"{source}: the tokenizer has {known.size} tokens, the model knows {vocabulary}")
    return TokenMasking(
        known,
        config.train.seed,
        rate=settings.rate,
        mask_share=settings.mask_share,
        random_share=settings.random_share,
        whole_words=settings.whole_words,
    )
