"""Multi-head attention and the transformer from torch's weights: outputs, weights and every gradient."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import mindspore as ms
import numpy as np
import pytest
import torch

from ms_models.compat import multihead_attention, transformer

RNG = np.random.default_rng(3)
Arrays = dict[str, np.ndarray[Any, Any]]


def normal(*shape: int) -> np.ndarray[Any, Any]:
    return RNG.standard_normal(shape).astype(np.float32)


def first(result: Any) -> Any:
    return result[0] if isinstance(result, tuple) else result


def compare(theirs: torch.nn.Module, ours: Any, inputs: Arrays, training: bool, **options: Any) -> None:
    """Both from the same weights: state, results, gradients of parameters and of float inputs called q, k, v."""
    state = {name: ms.Tensor(value.numpy()) for name, value in theirs.state_dict().items()}
    assert {n: tuple(v.shape) for n, v in theirs.state_dict().items()} == {
        n: v.shape for n, v in ours.state_dict().items()
    }
    assert [n for n, _ in theirs.named_parameters()] == [n for n, _ in ours.named_parameters()]
    ours.load_state_dict(state)
    theirs.train(training).zero_grad()
    ours.train(training)
    given = {name: torch.from_numpy(a.copy()) for name, a in inputs.items()}
    moving = [n for n in inputs if n in ("query", "key", "value", "src", "tgt", "memory")]
    for name in moving:
        given[name].requires_grad_()
    want = theirs(**given, **options)
    weights = np.cos(np.arange(first(want).numel(), dtype=np.float32)).reshape(tuple(first(want).shape))
    (first(want) * torch.from_numpy(weights)).sum().backward()
    kept = {name: ms.Tensor(a) for name, a in inputs.items() if name not in moving}

    def weighted(*args: ms.Tensor) -> Any:
        result = ours(**dict(zip(moving, args, strict=True)), **kept, **options)
        return (first(result) * ms.Tensor(weights)).sum(), result

    arguments = [ms.Tensor(inputs[n]) for n in moving]
    parameters = list(ours.parameters())
    places = tuple(range(len(arguments)))
    (_, got), (by_input, by_parameter) = ms.value_and_grad(weighted, places, parameters, has_aux=True)(*arguments)
    pairs = zip(want, got, strict=True) if isinstance(want, tuple) else [(want, got)]
    for a, b in pairs:
        assert (a is None) == (b is None)
        if a is not None:
            # sums of a few dozen products through at most four layers
            np.testing.assert_allclose(b.asnumpy(), a.detach().numpy(), rtol=1e-4, atol=2e-5)
    by_input = by_input if isinstance(by_input, tuple) else (by_input,)
    for name, gradient in zip(moving, by_input, strict=True):
        np.testing.assert_allclose(gradient.asnumpy(), given[name].grad.numpy(), rtol=1e-3, atol=5e-5, err_msg=name)
    for (name, p), gradient in zip(theirs.named_parameters(), by_parameter, strict=True):
        expected = np.zeros(p.shape, np.float32) if p.grad is None else p.grad.numpy()
        np.testing.assert_allclose(gradient.asnumpy(), expected, rtol=1e-3, atol=5e-5, err_msg=name)


SETTINGS: list[dict[str, Any]] = [
    {},
    {"bias": False, "batch_first": True},
    {"kdim": 3, "vdim": 5},
    {"kdim": 3, "bias": False, "batch_first": True},
    {"add_bias_kv": True},
    {"add_zero_attn": True, "batch_first": True},
    {"add_bias_kv": True, "add_zero_attn": True, "vdim": 5},
]


@pytest.mark.parametrize("number", range(len(SETTINGS)))
@pytest.mark.parametrize("training", [True, False])
def test_multihead_attention(number: int, training: bool) -> None:
    settings = SETTINGS[number]
    torch.manual_seed(number)
    theirs = torch.nn.MultiheadAttention(8, 2, **settings)
    with torch.no_grad():
        for p in theirs.parameters():
            p.add_(torch.randn_like(p) * 0.1)  # biases that matter
    ours = multihead_attention.MultiheadAttention(8, 2, **settings)
    shape: Callable[[int, int], tuple[int, ...]] = lambda n, e: (2, n, e) if settings.get("batch_first") else (n, 2, e)  # noqa: E731
    inputs = {
        "query": normal(*shape(4, 8)),
        "key": normal(*shape(5, settings.get("kdim", 8))),
        "value": normal(*shape(5, settings.get("vdim", 8))),
    }
    padding = np.array([[False] * 5, [False, False, False, True, True]])
    masks: list[Arrays] = [
        {},
        {"key_padding_mask": padding},
        {"attn_mask": np.triu(np.ones((4, 5), bool), 2)},
        {"attn_mask": normal(4, 5), "key_padding_mask": normal(2, 5)},
        {"attn_mask": normal(4, 4, 5)},
    ]
    for mask, weights in itertools.product(masks, (True, False)):
        compare(theirs, ours, inputs | mask, training, need_weights=weights)
    compare(theirs, ours, inputs, training, average_attn_weights=False)


@pytest.mark.parametrize("need_weights", [True, False])
def test_the_causal_hint_takes_the_place_of_the_mask_where_torch_does_that(need_weights: bool) -> None:
    theirs, ours = torch.nn.MultiheadAttention(8, 2), multihead_attention.MultiheadAttention(8, 2)
    inputs = {name: normal(4, 2, 8) for name in ("query", "key", "value")}
    mask = {"attn_mask": np.tril(np.ones((4, 4), bool), -1)}  # not causal at all
    compare(theirs, ours, inputs | mask, True, is_causal=True, need_weights=need_weights)
    with pytest.raises(RuntimeError, match="is_causal"):
        ours(*[ms.Tensor(a) for a in inputs.values()], is_causal=True)


def test_a_query_that_sees_nothing() -> None:
    theirs, ours = torch.nn.MultiheadAttention(8, 2), multihead_attention.MultiheadAttention(8, 2)
    ours.load_state_dict({name: ms.Tensor(value.numpy()) for name, value in theirs.state_dict().items()})
    x, mask = normal(3, 2, 8), np.array([[False, True, True], [True, True, True], [False, False, False]])
    for need_weights in (True, False):
        tensor = torch.from_numpy(x)
        want = theirs(tensor, tensor, tensor, attn_mask=torch.from_numpy(mask), need_weights=need_weights)[0]
        got = ours(*[ms.Tensor(x)] * 3, attn_mask=ms.Tensor(mask), need_weights=need_weights)[0]
        np.testing.assert_allclose(got.asnumpy(), want.detach().numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "settings", [{}, {"norm_first": True, "activation": "gelu", "batch_first": True, "bias": False}]
)
@pytest.mark.parametrize("training", [True, False])
def test_transformer(settings: dict[str, Any], training: bool) -> None:
    torch.manual_seed(1)
    sizes = {"d_model": 8, "nhead": 2, "num_encoder_layers": 2, "num_decoder_layers": 2, "dim_feedforward": 12}
    theirs = torch.nn.Transformer(**sizes, dropout=0.0, **settings)
    ours = transformer.Transformer(**sizes, dropout=0.0, **settings)
    first = bool(settings.get("batch_first"))
    inputs = {
        "src": normal(2, 5, 8) if first else normal(5, 2, 8),
        "tgt": normal(2, 4, 8) if first else normal(4, 2, 8),
    }
    hidden = np.array([[False] * 5, [False, False, False, True, True]])
    causal = transformer.Transformer.generate_square_subsequent_mask(4).asnumpy()
    np.testing.assert_array_equal(causal, torch.nn.Transformer.generate_square_subsequent_mask(4).numpy())
    compare(theirs, ours, inputs, training)
    later = np.isinf(causal)
    masks = {"tgt_mask": later, "src_key_padding_mask": hidden, "memory_key_padding_mask": hidden}
    compare(theirs, ours, inputs | masks, training)
    compare(theirs, ours, inputs | {"tgt_mask": causal}, training, tgt_is_causal=True)


def test_layers_draw_their_dropouts_in_training_only() -> None:
    layer = transformer.TransformerDecoderLayer(8, 2, 12, dropout=0.5)
    x, memory = ms.Tensor(normal(4, 2, 8)), ms.Tensor(normal(5, 2, 8))
    assert not np.array_equal(layer(x, memory).asnumpy(), layer(x, memory).asnumpy())
    layer.eval()
    assert np.array_equal(layer(x, memory).asnumpy(), layer(x, memory).asnumpy())


def test_initial_values_have_the_spread_of_torch() -> None:
    theirs = torch.nn.MultiheadAttention(64, 4, kdim=48, add_bias_kv=True)
    ours = multihead_attention.MultiheadAttention(64, 4, kdim=48, add_bias_kv=True)
    for (name, want), (_, got) in zip(theirs.named_parameters(), ours.named_parameters(), strict=True):
        spread = float(want.detach().std())
        # five standard errors of the deviation of 64 normal numbers (the smallest tensor that is drawn)
        assert abs(float(got.asnumpy().std(ddof=1)) - spread) <= 0.63 * spread, name
