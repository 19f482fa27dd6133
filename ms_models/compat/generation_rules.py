"""The processors of scores and the reasons to stop that the options of `generate` ask for, in transformers' order."""

from __future__ import annotations

from typing import Any

import numpy as np
from mindspore import Tensor

from . import logits_processors as rules
from .generation_config import GenerationConfig
from .stopping_criteria import (
    EosTokenCriteria,
    MaxLengthCriteria,
    MaxTimeCriteria,
    StoppingCriteriaList,
    StopStringCriteria,
)


def logits_processors(
    options: GenerationConfig, length: int, mask: Tensor | None, allowed: Any, given: Any
) -> rules.LogitsProcessorList:
    """All changes of the scores.

    Args:
        options: with the final `max_length` and `min_length`.
        length: tokens of the prompt.
        mask: of the prompt; what it leaves out is not repeated.
        allowed: the user's `prefix_allowed_tokens_fn`.
        given: the user's processors.
    """
    found: list[Any] = []
    ends = options.eos_token_id
    if options.repetition_penalty != 1.0:
        ignored = None if mask is None else (mask != 0).int().argmax(1)
        found.append(rules.RepetitionPenaltyLogitsProcessor(options.repetition_penalty, ignored))
    if options.no_repeat_ngram_size > 0:
        found.append(rules.NoRepeatNGramLogitsProcessor(options.no_repeat_ngram_size))
    if options.bad_words_ids is not None:
        found.append(rules.NoBadWordsLogitsProcessor(options.bad_words_ids, ends))
    if options.min_length > 0 and ends is not None:
        found.append(rules.MinLengthLogitsProcessor(options.min_length, ends))
    if options.min_new_tokens and ends is not None:
        found.append(rules.MinNewTokensLengthLogitsProcessor(length, options.min_new_tokens, ends))
    if allowed is not None:
        found.append(
            rules.PrefixConstrainedLogitsProcessor(allowed, max(options.num_beams, options.num_return_sequences))
        )
    if options.forced_bos_token_id is not None:
        found.append(rules.ForcedBOSTokenLogitsProcessor(options.forced_bos_token_id))
    if options.forced_eos_token_id is not None:
        found.append(rules.ForcedEOSTokenLogitsProcessor(options.max_length, options.forced_eos_token_id))
    if options.remove_invalid_values:
        found.append(rules.InfNanRemoveLogitsProcessor())
    if options.suppress_tokens is not None:
        found.append(rules.SuppressTokensLogitsProcessor(options.suppress_tokens))
    if options.begin_suppress_tokens is not None:
        begin = length if length > 1 or options.forced_bos_token_id is None else length + 1
        found.append(rules.SuppressTokensAtBeginLogitsProcessor(options.begin_suppress_tokens, begin))
    found = _merged(found, given)
    if options.do_sample:
        found += _cuts(options)
    if options.renormalize_logits:
        found.append(rules.LogitNormalization())
    return rules.LogitsProcessorList(found)


def _cuts(options: GenerationConfig) -> list[Any]:
    found: list[Any] = []
    keep = {"min_tokens_to_keep": 1}
    if options.num_beams > 1:  # a beam must be able to go on when the others end
        keep["min_tokens_to_keep"] = 2 if options.eos_token_id is None else np.size(options.eos_token_id) + 1
    if options.temperature != 1.0:
        found.append(rules.TemperatureLogitsWarper(options.temperature))
    if options.top_k:
        found.append(rules.TopKLogitsWarper(options.top_k, **keep))
    if options.top_p < 1.0:
        found.append(rules.TopPLogitsWarper(options.top_p, **keep))
    if options.min_p is not None:
        found.append(rules.MinPLogitsWarper(options.min_p, **keep))
    if options.typical_p < 1.0:
        found.append(rules.TypicalLogitsWarper(options.typical_p, **keep))
    if 0.0 < options.epsilon_cutoff < 1.0:
        found.append(rules.EpsilonLogitsWarper(options.epsilon_cutoff, **keep))
    return found


def stopping_criteria(model_config: Any, options: GenerationConfig, given: Any, tokenizer: Any) -> StoppingCriteriaList:
    """All reasons to stop.

    Raises:
        ValueError: `stop_strings` without a tokenizer.
    """
    room = getattr(model_config, "max_position_embeddings", None)
    found: list[Any] = [MaxLengthCriteria(options.max_length, room)]
    if options.max_time is not None:
        found.append(MaxTimeCriteria(options.max_time))
    if options.stop_strings is not None:
        if tokenizer is None:
            raise ValueError("generate(stop_strings=...) needs the tokenizer; pass tokenizer=")
        found.append(StopStringCriteria(tokenizer, options.stop_strings))
    if options.eos_token_id is not None:
        found.append(EosTokenCriteria(options.eos_token_id))
    return StoppingCriteriaList(_merged(found, given))


def _merged(made: list[Any], given: Any) -> list[Any]:
    """The user's object takes the place of one of the same class."""
    own = list(given or [])
    kept = [next((one for one in own if type(one) is type(default)), default) for default in made]
    return kept + [one for one in own if not any(one is other for other in kept)]
