"""Masks of attention from a configuration, a cache and the padding, with transformers' rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mindspore as ms
from mindspore import Tensor, ops

from .encoder_masks import create_bidirectional_mask, create_bidirectional_sliding_window_mask
from .mask_arguments import _preprocess_mask_arguments, full_layer, per_row, sliding_layer, stated_size
from .mask_functions import (
    ALL_MASK_ATTENTION_FUNCTIONS,
    MaskFunction,
    and_masks,
    blockwise_overlay,
    causal_mask_function,
    chunked_causal_mask_function,
    in_own_positions,
    maybe_pad_block_sequence_ids,
    or_masks,
    packed_sequence_mask_function,
    sliding_window_causal_mask_function,
)


def _causal(
    function: Callable[[Tensor | None], tuple[MaskFunction, int | None]],
    config: Any,
    inputs_embeds: Tensor,
    attention_mask: Tensor | None,
    cache: Any,
    position_ids: Tensor | None,
    or_mask_function: MaskFunction | None,
    and_mask_function: MaskFunction | None,
    block_sequence_ids: Tensor | None,
    layer_idx: int,
    allow_is_causal_skip: bool,
) -> Tensor | None:
    """What the causal masks have in common; `function` gives the pattern and its local size, once padding is known."""
    ready, attention_mask, packed, q_length, kv_length, q_offset, kv_offset = _preprocess_mask_arguments(
        config, inputs_embeds, attention_mask, cache, position_ids, layer_idx
    )
    if ready:
        return attention_mask
    pattern, local_size = function(attention_mask)
    skip = allow_is_causal_skip and not (getattr(cache, "is_compileable", False) and q_length == 1)
    if or_mask_function is not None:
        pattern, skip = or_masks(pattern, or_mask_function), False
    if and_mask_function is not None:
        pattern, skip = and_masks(pattern, and_mask_function), False
    if packed is not None:
        assert position_ids is not None
        pattern, skip = in_own_positions(pattern, per_row(position_ids, inputs_embeds.shape[0])), False
    if block_sequence_ids is not None:
        blocks = maybe_pad_block_sequence_ids(block_sequence_ids, attention_mask, kv_length, kv_offset)
        pattern, skip = or_masks(pattern, blockwise_overlay(blocks)), False
    if packed is not None:
        pattern = and_masks(pattern, packed_sequence_mask_function(packed))
    return ALL_MASK_ATTENTION_FUNCTIONS[config._attn_implementation](
        batch_size=inputs_embeds.shape[0], q_length=q_length, kv_length=kv_length, q_offset=q_offset,
        kv_offset=kv_offset, mask_function=pattern, attention_mask=attention_mask, local_size=local_size,
        allow_is_causal_skip=skip, dtype=inputs_embeds.dtype, config=config,
    )  # fmt: skip


def create_causal_mask(
    config: Any,
    inputs_embeds: Tensor,
    attention_mask: Tensor | None = None,
    cache: Any = None,
    position_ids: Tensor | None = None,
    or_mask_function: MaskFunction | None = None,
    and_mask_function: MaskFunction | None = None,
    block_sequence_ids: Tensor | None = None,
    layer_idx: int | None = None,
    allow_is_causal_skip: bool = True,
    past_key_values: Any = None,
) -> Tensor | None:
    """Mask of the layers that see everything before them; bidirectional where the configuration is not causal."""
    cache = past_key_values if cache is None else cache
    if not getattr(config, "is_causal", True):
        return create_bidirectional_mask(
            config,
            inputs_embeds,
            attention_mask,
            None,
            cache,
            or_mask_function,
            and_mask_function,
            allow_is_causal_skip,
        )
    layer = full_layer(cache) if layer_idx is None else layer_idx
    return _causal(
        lambda padding: (causal_mask_function, None), config, inputs_embeds, attention_mask, cache, position_ids,
        or_mask_function, and_mask_function, block_sequence_ids, layer, allow_is_causal_skip,
    )  # fmt: skip


def create_sliding_window_causal_mask(
    config: Any,
    inputs_embeds: Tensor,
    attention_mask: Tensor | None = None,
    cache: Any = None,
    position_ids: Tensor | None = None,
    or_mask_function: MaskFunction | None = None,
    and_mask_function: MaskFunction | None = None,
    block_sequence_ids: Tensor | None = None,
    layer_idx: int | None = None,
    allow_is_causal_skip: bool = True,
    past_key_values: Any = None,
) -> Tensor | None:
    """Mask of the layers that see a window of `config.sliding_window` positions."""
    cache = past_key_values if cache is None else cache
    if not getattr(config, "is_causal", True):
        return create_bidirectional_sliding_window_mask(
            config,
            inputs_embeds,
            attention_mask,
            None,
            cache,
            or_mask_function,
            and_mask_function,
            allow_is_causal_skip,
        )
    window = stated_size(config, "sliding_window")
    layer = sliding_layer(cache) if layer_idx is None else layer_idx
    return _causal(
        lambda padding: (sliding_window_causal_mask_function(window), window), config, inputs_embeds, attention_mask,
        cache, position_ids, or_mask_function, and_mask_function, block_sequence_ids, layer, allow_is_causal_skip,
    )  # fmt: skip


def create_chunked_causal_mask(
    config: Any,
    inputs_embeds: Tensor,
    attention_mask: Tensor | None = None,
    cache: Any = None,
    position_ids: Tensor | None = None,
    or_mask_function: MaskFunction | None = None,
    and_mask_function: MaskFunction | None = None,
    block_sequence_ids: Tensor | None = None,
    layer_idx: int | None = None,
    allow_is_causal_skip: bool = True,
    past_key_values: Any = None,
) -> Tensor | None:
    """Mask of the layers that see their chunk of `config.attention_chunk_size` positions."""
    cache = past_key_values if cache is None else cache
    chunk = stated_size(config, "attention_chunk_size")
    layer = sliding_layer(cache) if layer_idx is None else layer_idx

    def pattern(padding: Tensor | None) -> tuple[MaskFunction, int | None]:
        rows = inputs_embeds.shape[0]
        left = ops.zeros((rows,), ms.int64) if padding is None else _left_padding(padding)
        return chunked_causal_mask_function(chunk, left), chunk

    return _causal(
        pattern, config, inputs_embeds, attention_mask, cache, position_ids, or_mask_function, and_mask_function,
        block_sequence_ids, layer, allow_is_causal_skip,
    )  # fmt: skip


def _left_padding(padding: Tensor) -> Tensor:
    return (padding.astype(ms.int32).cumsum(-1) == 0).astype(ms.int64).sum(-1)


_BY_LAYER_TYPE = {
    "full_attention": create_causal_mask,
    "sliding_attention": create_sliding_window_causal_mask,
    "chunked_attention": create_chunked_causal_mask,
}


def create_masks_for_generate(
    config: Any,
    inputs_embeds: Tensor,
    attention_mask: Tensor | None = None,
    cache: Any = None,
    position_ids: Tensor | None = None,
    or_mask_function: MaskFunction | None = None,
    and_mask_function: MaskFunction | None = None,
    block_sequence_ids: Tensor | None = None,
    past_key_values: Any = None,
    **kwargs: Any,
) -> Any:
    """The mask that a configuration asks for; one for each type of layer where it names them."""
    config = config.get_text_config()
    arguments: dict[str, Any] = {
        "config": config, "inputs_embeds": inputs_embeds, "attention_mask": attention_mask,
        "cache": past_key_values if cache is None else cache, "position_ids": position_ids,
        "or_mask_function": or_mask_function, "and_mask_function": and_mask_function,
        "block_sequence_ids": block_sequence_ids,
    }  # fmt: skip
    if hasattr(config, "layer_types"):
        kinds = set(config.layer_types)
        if not kinds <= set(_BY_LAYER_TYPE):
            return attention_mask  # the model makes its masks itself
        return {kind: _BY_LAYER_TYPE[kind](**arguments) for kind in kinds}
    if getattr(config, "sliding_window", None) is not None:
        return create_sliding_window_causal_mask(**arguments)
    if getattr(config, "attention_chunk_size", None) is not None:
        return create_chunked_causal_mask(**arguments)
    return create_causal_mask(**arguments)
