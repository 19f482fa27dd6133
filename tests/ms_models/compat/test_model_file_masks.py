"""Masks and caches of transformers' model files against transformers' own, element by element."""

from __future__ import annotations

from typing import Any

import mindspore as ms
import numpy as np
import pytest
import torch
from transformers import cache_utils, masking_utils
from transformers.models.gemma3.configuration_gemma3 import Gemma3TextConfig
from transformers.models.llama.configuration_llama import LlamaConfig

from ms_models.compat import attention_masks, caches, encoder_masks

SIZES: dict[str, Any] = {"num_hidden_layers": 2, "hidden_size": 12, "num_attention_heads": 3, "num_key_value_heads": 3}
PADDED = np.array([[0, 0, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1, 1]], np.int64)
PACKED = np.array([[0, 1, 2, 0, 1, 2, 3], [0, 1, 0, 1, 2, 0, 1]], np.int64)


def configuration(attention: str, **options: Any) -> Any:
    config = LlamaConfig(**SIZES, **options)
    config._attn_implementation = attention
    return config


def both(name: str, config: Any, length: int = 7, **arguments: Any) -> tuple[Any, Any]:
    """The masks of both libraries; arrays become tensors."""
    ours = getattr(encoder_masks if "bidirectional" in name else attention_masks, name)
    embeds = np.zeros((2, length, 12), np.float32)
    sides = []
    for function, tensor in ((getattr(masking_utils, name), torch.from_numpy), (ours, ms.Tensor)):
        given = {key: tensor(value) if isinstance(value, np.ndarray) else value for key, value in arguments.items()}
        given.setdefault("attention_mask", None)
        if "bidirectional" not in name:
            given.setdefault("cache", None)
        sides.append(function(config=config, inputs_embeds=tensor(embeds), **given))
    return sides[0], sides[1]


def agree(expected: Any, found: Any) -> None:
    if isinstance(expected, dict):
        assert expected.keys() == found.keys()
        for key in expected:
            agree(expected[key], found[key])
    elif expected is None or found is None:
        assert expected is None and found is None
    else:
        np.testing.assert_array_equal(expected.numpy(), found.asnumpy())
        assert str(expected.dtype).split(".")[1] == str(found.dtype).lower()


CASES: dict[str, dict[str, Any]] = {
    "nothing": {},
    "padded": {"attention_mask": PADDED},
    "all ones": {"attention_mask": np.ones_like(PADDED)},
    "packed": {"position_ids": PACKED},
    "blocks": {"block_sequence_ids": np.array([[-1, 0, 0, 0, -1, 1, 1], [-1] * 7], np.int64)},
    "kept": {"allow_is_causal_skip": False},
    "four dimensions": {"attention_mask": np.ones((2, 1, 7, 7), np.float32)},
}


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("case", list(CASES))
@pytest.mark.parametrize("kind", ["causal_mask", "sliding_window_causal_mask", "chunked_causal_mask"])
def test_masks_of_decoders(attention: str, case: str, kind: str) -> None:
    config = configuration(attention, sliding_window=3, attention_chunk_size=4)
    agree(*both(f"create_{kind}", config, **CASES[case]))


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("kind", ["bidirectional_mask", "bidirectional_sliding_window_mask"])
def test_masks_of_encoders(attention: str, kind: str) -> None:
    config = configuration(attention, sliding_window=2)
    agree(*both(f"create_{kind}", config))
    agree(*both(f"create_{kind}", config, attention_mask=PADDED))
    agree(*both(f"create_{kind}", config, encoder_hidden_states=np.zeros((2, 4, 12), np.float32)))


def test_a_decoder_that_is_not_causal() -> None:
    config = configuration("eager", is_causal=False)
    agree(*both("create_causal_mask", config, attention_mask=PADDED))


def test_masks_by_type_of_layer() -> None:
    config = Gemma3TextConfig(**SIZES, sliding_window=3, layer_types=["sliding_attention", "full_attention"])
    config._attn_implementation = "eager"
    agree(*both("create_masks_for_generate", config, attention_mask=PADDED))


def test_attention_without_masks() -> None:
    agree(*both("create_causal_mask", configuration("my own"), attention_mask=PADDED))
    attention_masks.ALL_MASK_ATTENTION_FUNCTIONS["my own"] = lambda **given: given["attention_mask"]
    try:
        embeds, mask = ms.Tensor(np.zeros((2, 7, 12), np.float32)), ms.Tensor(PADDED)
        found = attention_masks.create_causal_mask(configuration("my own"), embeds, mask)
    finally:
        del attention_masks.ALL_MASK_ATTENTION_FUNCTIONS["my own"]
    assert found is not None and (found.asnumpy() == PADDED).all()


def test_masks_in_graphs() -> None:
    """Values are not known there, so that a mask comes where eager code does without."""
    eager, sdpa = configuration("eager"), configuration("sdpa")
    embeds, mask = ms.Tensor(np.zeros((2, 7, 12), np.float32)), ms.Tensor(PADDED)

    def packed(x: ms.Tensor, position_ids: ms.Tensor) -> Any:
        return attention_masks.create_causal_mask(eager, x, None, None, position_ids)

    def padded(x: ms.Tensor, padding: ms.Tensor) -> Any:
        return attention_masks.create_causal_mask(sdpa, x, padding)

    for function, given in ((packed, ms.Tensor(PACKED)), (packed, ms.ops.arange(7)[None]), (padded, mask)):
        np.testing.assert_array_equal(ms.jit(function)(embeds, given).asnumpy(), function(embeds, given).asnumpy())
    assert padded(embeds, ms.ops.ones_like(mask)) is None
    everything = ms.jit(padded)(embeds, ms.ops.ones_like(mask)).asnumpy()
    np.testing.assert_array_equal(everything[:, 0], np.broadcast_to(np.tril(np.ones((7, 7), bool)), (2, 7, 7)))


def test_kernels_are_refused() -> None:
    with pytest.raises(NotImplementedError, match="flash_attention_2"):
        attention_masks.create_causal_mask(
            configuration("flash_attention_2"), ms.Tensor(np.zeros((2, 7, 12), np.float32))
        )


KINDS: dict[str, Any] = {
    "dynamic": lambda library, config: library.DynamicCache(config=config),
    "static": lambda library, config: library.StaticCache(config=config, max_cache_len=12),
    "static, window": lambda library, config: library.StaticCache(config=config, max_cache_len=6),
}


@pytest.mark.parametrize("kind", list(KINDS))
def test_caches_and_their_masks(kind: str) -> None:
    """A layer with a window and one without, fed by pieces until the window is full."""
    config = Gemma3TextConfig(**SIZES, sliding_window=4, layer_types=["sliding_attention", "full_attention"])
    config._attn_implementation = "eager"
    theirs, ours = KINDS[kind](cache_utils, config), KINDS[kind](caches, config)
    generator = np.random.default_rng(0)
    for length in (3, 1, 1) if kind == "static, window" else (3, 2, 1, 1, 4):
        assert ours.get_seq_length() == int(theirs.get_seq_length())
        sizes = [(ours.get_mask_sizes(length, layer), theirs.get_mask_sizes(length, layer)) for layer in range(2)]
        assert all(tuple(found) == tuple(map(int, expected)) for found, expected in sizes)
        embeds = np.zeros((2, length, 12), np.float32)
        for name in ("create_causal_mask", "create_sliding_window_causal_mask"):
            expected = getattr(masking_utils, name)(config, torch.from_numpy(embeds), None, theirs)
            agree(expected, getattr(attention_masks, name)(config, ms.Tensor(embeds), None, ours))
        for layer in range(2):
            key, value = generator.standard_normal((2, 2, 3, length, 4)).astype(np.float32)
            expected = theirs.update(torch.from_numpy(key), torch.from_numpy(value), layer)
            found = ours.update(ms.Tensor(key), ms.Tensor(value), layer)
            for one, other in zip(expected, found, strict=True):
                np.testing.assert_array_equal(one.numpy(), other.asnumpy())
    for field in ("is_sliding", "is_compileable", "is_initialized", "is_croppable"):
        assert getattr(ours, field) == getattr(theirs, field), field
    assert ours.get_max_length() == theirs.get_max_length()


def test_what_is_done_to_a_dynamic_cache() -> None:
    theirs: Any = cache_utils.DynamicCache()
    ours: Any = caches.DynamicCache()
    values = np.arange(2 * 3 * 5 * 4, dtype=np.float32).reshape(2, 3, 5, 4)
    theirs.update(torch.from_numpy(values), torch.from_numpy(values + 1), 0)
    ours.update(ms.Tensor(values), ms.Tensor(values + 1), 0)
    for method, argument in (("crop", -2), ("batch_repeat_interleave", 2), ("reorder_cache", np.array([3, 1, 0]))):
        arrays = isinstance(argument, np.ndarray)
        getattr(theirs, method)(torch.from_numpy(argument) if arrays else argument)
        getattr(ours, method)(ms.Tensor(argument) if arrays else argument)
        np.testing.assert_array_equal(theirs.layers[0].values.numpy(), ours.layers[0].values.asnumpy())
    ours.reset()
    assert ours.get_seq_length() == 0


def test_the_cache_of_an_encoder_decoder() -> None:
    own, cross = caches.DynamicCache(), caches.DynamicCache()
    states = ms.Tensor(np.zeros((1, 2, 3, 4), np.float32))
    cross.update(states, states, 0)
    pair = caches.EncoderDecoderCache(own, cross)
    assert pair.is_updated == {0: True} and pair.get_seq_length() == 0
    pair.self_attention_cache.update(states, states, 0)
    assert pair.get_seq_length() == 3 and len(pair) == 1
    pair.reset()
    assert pair.is_updated == {0: False} and cross.get_seq_length() == 0


def test_gradients_flow_through_a_static_cache() -> None:
    states = np.random.default_rng(1).standard_normal((1, 2, 3, 4)).astype(np.float32)

    def total(x: ms.Tensor) -> ms.Tensor:
        cache = caches.StaticCache(LlamaConfig(**SIZES), max_cache_len=5)
        keys, values = cache.update(x, x * x, 0)
        return (keys * 2 + values).sum()

    np.testing.assert_allclose(ms.grad(total)(ms.Tensor(states)).asnumpy(), 2 + 2 * states, rtol=1e-6)
