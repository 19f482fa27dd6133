"""Masks of attention to both sides, with transformers' rules."""

from __future__ import annotations

from typing import Any

from mindspore import Tensor

from .mask_arguments import _preprocess_mask_arguments, full_layer, sliding_layer, stated_size
from .mask_functions import (
    ALL_MASK_ATTENTION_FUNCTIONS,
    MaskFunction,
    and_masks,
    bidirectional_mask_function,
    or_masks,
    sliding_window_bidirectional_mask_function,
)


def create_bidirectional_mask(
    config: Any,
    inputs_embeds: Tensor,
    attention_mask: Tensor | None = None,
    encoder_hidden_states: Tensor | None = None,
    cache: Any = None,
    or_mask_function: MaskFunction | None = None,
    and_mask_function: MaskFunction | None = None,
    allow_is_bidirectional_skip: bool = True,
    past_key_values: Any = None,
    **kwargs: Any,
) -> Tensor | None:
    """Mask of an encoder, or of the attention to one; its keys are those of `encoder_hidden_states`."""
    cache = past_key_values if cache is None else cache
    return _bidirectional(
        bidirectional_mask_function, None, config, inputs_embeds, attention_mask, encoder_hidden_states, cache,
        or_mask_function, and_mask_function, allow_is_bidirectional_skip, full_layer(cache),
    )  # fmt: skip


def create_bidirectional_sliding_window_mask(
    config: Any,
    inputs_embeds: Tensor,
    attention_mask: Tensor | None = None,
    encoder_hidden_states: Tensor | None = None,
    cache: Any = None,
    or_mask_function: MaskFunction | None = None,
    and_mask_function: MaskFunction | None = None,
    allow_is_bidirectional_skip: bool = True,
    past_key_values: Any = None,
    **kwargs: Any,
) -> Tensor | None:
    """Mask of an encoder's layers that see `config.sliding_window` positions to both sides."""
    cache = past_key_values if cache is None else cache
    window = stated_size(config, "sliding_window")
    return _bidirectional(
        sliding_window_bidirectional_mask_function(window), window, config, inputs_embeds, attention_mask,
        encoder_hidden_states, cache, or_mask_function, and_mask_function, allow_is_bidirectional_skip,
        sliding_layer(cache),
    )  # fmt: skip


def _bidirectional(
    pattern: MaskFunction,
    local_size: int | None,
    config: Any,
    inputs_embeds: Tensor,
    attention_mask: Tensor | None,
    encoder_hidden_states: Tensor | None,
    cache: Any,
    or_mask_function: MaskFunction | None,
    and_mask_function: MaskFunction | None,
    skip: bool,
    layer_idx: int,
) -> Tensor | None:
    ready, attention_mask, _, q_length, kv_length, q_offset, kv_offset = _preprocess_mask_arguments(
        config, inputs_embeds, attention_mask, cache, None, layer_idx, encoder_hidden_states
    )
    if ready:
        return attention_mask
    if or_mask_function is not None:
        pattern, skip = or_masks(pattern, or_mask_function), False
    if and_mask_function is not None:
        pattern, skip = and_masks(pattern, and_mask_function), False
    embeds = inputs_embeds if encoder_hidden_states is None else encoder_hidden_states
    return ALL_MASK_ATTENTION_FUNCTIONS[config._attn_implementation](
        batch_size=embeds.shape[0], q_length=q_length, kv_length=kv_length, q_offset=q_offset, kv_offset=kv_offset,
        mask_function=pattern, attention_mask=attention_mask, allow_is_causal_skip=False,
        allow_is_bidirectional_skip=skip, local_size=local_size, dtype=embeds.dtype, config=config,
    )  # fmt: skip
