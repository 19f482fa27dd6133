"""What transformers' model files import, against transformers: rope, activations, attention, losses, decorators."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import mindspore as ms
import numpy as np
import pytest
import torch
from transformers import activations as hf_activations
from transformers.integrations.sdpa_attention import sdpa_attention_forward as hf_sdpa
from transformers.loss import loss_utils
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS as HF_ROPE
from transformers.modeling_utils import slice_logits_to_keep as hf_slice
from transformers.models.llama.configuration_llama import LlamaConfig
from transformers.pytorch_utils import apply_chunking_to_forward as hf_chunking
from transformers.pytorch_utils import prune_linear_layer as hf_prune

from ms_models.compat import (
    attention_interface,
    availability,
    conv1d,
    forward_decorators,
    initialization,
    kept_logits,
    model_losses,
    named_activations,
    rope,
)
from ms_models.compat.layers import Linear

CLOSE: dict[str, Any] = {
    "rtol": 1e-5,
    "atol": 2e-6,
}  # a few roundings of float32; exponentials of both libraries differ by some
ROPES: dict[str, dict[str, Any]] = {
    "linear": {"factor": 3.0},
    "dynamic": {"factor": 2.0},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 16},
    "longrope": {
        "factor": 4.0, "original_max_position_embeddings": 16,
        "short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [1.0, 2.0, 3.0, 4.0],
    },
    "llama3": {
        "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16,
    },
    "proportional": {"partial_rotary_factor": 0.5},
}  # fmt: skip


def rope_config(kind: str) -> LlamaConfig:
    parameters = {"rope_type": kind, "rope_theta": 100.0, **ROPES[kind]}
    return LlamaConfig(hidden_size=16, num_attention_heads=2, max_position_embeddings=64, rope_parameters=parameters)


@pytest.mark.parametrize("kind", list(ROPES))
def test_frequencies_of_rope(kind: str) -> None:
    for length in (None, 12, 90):
        expected, factor = HF_ROPE[kind](rope_config(kind), None, seq_len=length)
        found, ours = rope.ROPE_INIT_FUNCTIONS[kind](rope_config(kind), None, seq_len=length)
        np.testing.assert_allclose(found.asnumpy(), expected.numpy(), rtol=1e-6)
        assert ours == pytest.approx(factor, rel=1e-12)


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_frequencies_follow_the_length(kind: str) -> None:
    """Short, long and short again: the trained frequencies come back."""
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    reference = LlamaRotaryEmbedding(rope_config(kind))

    class Rotary:
        def __init__(self, config: Any) -> None:
            self.config, self.rope_type = config, kind
            self.max_seq_len_cached = self.original_max_seq_len = config.max_position_embeddings
            start, self.attention_scaling = rope.ROPE_INIT_FUNCTIONS[kind](config)
            self.original_inv_freq = start
            self._buffers = {"inv_freq": start}

        @rope.dynamic_rope_update
        def construct(self, x: Any, position_ids: ms.Tensor) -> ms.Tensor:
            return self._buffers["inv_freq"]

    ours = Rotary(rope_config(kind))
    for length in (10, 90, 70, 10):
        reference(torch.zeros(1), torch.arange(length)[None])
        found = ours.construct(None, ms.ops.arange(length)[None])
        np.testing.assert_allclose(found.asnumpy(), reference.inv_freq.numpy(), rtol=1e-6)


@pytest.mark.parametrize("name", [name for name in hf_activations.ACT2CLS if name != "xielu"])
def test_activations_by_name(name: str) -> None:
    values = np.concatenate([np.linspace(-12, 12, 49), [0.0, 5.0]]).astype(np.float32)
    expected = hf_activations.ACT2FN[name](torch.from_numpy(values + 20 * (name == "sqrtsoftplus"))).detach()
    found = named_activations.ACT2FN[name](ms.Tensor(values + np.float32(20 * (name == "sqrtsoftplus"))))
    np.testing.assert_allclose(found.asnumpy(), expected.numpy(), **CLOSE)


def test_unknown_activations() -> None:
    assert set(named_activations.ACT2FN) == set(hf_activations.ACT2CLS)
    with pytest.raises(NotImplementedError, match="xielu"):
        named_activations.ACT2FN["xielu"]
    with pytest.raises(KeyError, match="softmox"):
        named_activations.get_activation("softmox")


@pytest.mark.parametrize("case", ["causal", "mask", "numbers", "bias", "one query", "static"])
def test_sdpa_attention(case: str) -> None:
    draw = np.random.default_rng(2).standard_normal
    queries, keys = (1, 5) if case == "one query" else (3, 5) if case == "static" else (4, 4)
    query, key, value = (draw((2, heads, n, 6)).astype(np.float32) for heads, n in ((4, queries), (2, keys), (2, keys)))
    mask: Any = None
    if case == "mask":
        mask = np.tril(np.ones((2, 1, queries, keys), bool))
    elif case == "numbers":
        mask = draw((2, 1, queries, keys)).astype(np.float32)
    bias = draw((1, 4, queries, keys)).astype(np.float32) if case == "bias" else None
    module: Any = SimpleNamespace(num_key_value_groups=2, is_causal=True)
    sides = []
    functions: list[tuple[Any, Any]] = [
        (hf_sdpa, torch.from_numpy),
        (attention_interface.sdpa_attention_forward, ms.Tensor),
    ]
    for function, tensor in functions:
        q, k, v, m, b = (None if a is None else tensor(a) for a in (query, key, value, mask, bias))
        output, weights = function(module, q, k, v, m, scaling=0.3, position_bias=b)
        assert weights is None
        sides.append(output.numpy() if isinstance(output, torch.Tensor) else output.asnumpy())
    np.testing.assert_allclose(sides[1], sides[0], **CLOSE)


def test_attention_by_name() -> None:
    functions = attention_interface.ALL_ATTENTION_FUNCTIONS
    assert functions.get_interface("eager", len) is len and functions.get_interface(None, len) is len
    assert functions.get_interface("sdpa", len) is attention_interface.sdpa_attention_forward
    with pytest.raises(KeyError, match="flash_attention_2"):
        functions.get_interface("flash_attention_2", len)


LABELS = np.array([[3, -100, 1, 4, 0], [2, 2, -100, -100, 1]], np.int64)
LOSSES: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "ForCausalLM": ((2, 5, 6), {"labels": LABELS, "vocab_size": 6}),
    "ForMaskedLM": ((2, 5, 6), {"labels": LABELS, "vocab_size": 6, "num_items_in_batch": 11}),
    "ForTokenClassification": ((2, 5, 6), {"labels": LABELS, "config": SimpleNamespace(num_labels=6)}),
}


@pytest.mark.parametrize("name", list(LOSSES))
def test_losses_of_tokens(name: str) -> None:
    shape, arguments = LOSSES[name]
    logits = np.random.default_rng(3).standard_normal(shape).astype(np.float32)
    _losses_agree(name, {"logits": logits, **arguments})


@pytest.mark.parametrize("kind", [None, "regression", "multi_label_classification"])
def test_losses_of_texts(kind: str | None) -> None:
    draw = np.random.default_rng(4)
    logits = draw.standard_normal((4, 3)).astype(np.float32)
    labels = draw.integers(0, 3, 4) if kind is None else draw.random((4, 3)).astype(np.float32)
    config = SimpleNamespace(num_labels=3, problem_type=kind)
    _losses_agree("ForSequenceClassification", {"labels": labels, "pooled_logits": logits, "config": config})


def test_losses_of_answers() -> None:
    logits = np.random.default_rng(5).standard_normal((2, 3, 7)).astype(np.float32)
    positions = {"start_positions": np.array([1, 9, 0]), "end_positions": np.array([6, 2, 3])}
    _losses_agree("ForQuestionAnswering", {"start_logits": logits[0], "end_logits": logits[1], **positions})


def _losses_agree(name: str, arguments: dict[str, Any]) -> None:
    sides = []
    tables: list[tuple[Any, Any]] = [
        (loss_utils.LOSS_MAPPING, torch.from_numpy),
        (model_losses.LOSS_MAPPING, ms.Tensor),
    ]
    for table, tensor in tables:
        given = {key: tensor(value) if isinstance(value, np.ndarray) else value for key, value in arguments.items()}
        sides.append(float(table[name](**given)))
    assert sides[1] == pytest.approx(sides[0], rel=1e-6)


@pytest.mark.parametrize("keep", [0, 1, 3, 9, "numbers", "each", "mask"])
def test_logits_that_are_kept(keep: Any) -> None:
    states = np.random.default_rng(6).standard_normal((2, 5, 3)).astype(np.float32)
    arrays = {
        "numbers": np.array([4, 0]),
        "each": np.array([[1, 2], [0, 4]]),
        "mask": np.arange(10).reshape(2, 5) % 3 == 0,
    }
    array = arrays.get(keep)
    expected = hf_slice(torch.from_numpy(states), keep if array is None else torch.from_numpy(array))
    found = kept_logits.slice_logits_to_keep(ms.Tensor(states), keep if array is None else ms.Tensor(array))
    np.testing.assert_array_equal(found.asnumpy(), expected.numpy())


def test_conv1d_and_chunks() -> None:
    layer = conv1d.Conv1D(5, 3)
    x = np.random.default_rng(7).standard_normal((2, 4, 3)).astype(np.float32)
    np.testing.assert_allclose(
        layer(ms.Tensor(x)).asnumpy(), x @ layer.weight.asnumpy() + layer.bias.asnumpy(), rtol=1e-5, atol=1e-7
    )
    expected = hf_chunking(lambda a: a * 2, 2, 1, torch.from_numpy(x))
    found = conv1d.apply_chunking_to_forward(lambda a: a * 2, 2, 1, ms.Tensor(x))
    np.testing.assert_array_equal(found.asnumpy(), expected.numpy())
    with pytest.raises(ValueError, match="multiple of 3"):
        conv1d.apply_chunking_to_forward(lambda a: a, 3, 1, ms.Tensor(x))


@pytest.mark.parametrize("dim", [0, 1])
def test_pruned_layers(dim: int) -> None:
    reference, layer = torch.nn.Linear(4, 5), Linear(4, 5)
    layer.weight.set_data(ms.Tensor(reference.weight.detach().numpy()))
    layer.bias.set_data(ms.Tensor(reference.bias.detach().numpy()))
    with torch.no_grad():
        expected = hf_prune(reference, torch.LongTensor([3, 0]), dim)
    found = conv1d.prune_linear_layer(layer, ms.Tensor([3, 0]), dim)
    np.testing.assert_array_equal(found.weight.asnumpy(), expected.weight.detach().numpy())
    np.testing.assert_array_equal(found.bias.asnumpy(), expected.bias.detach().numpy())


def test_questions_about_torch() -> None:
    assert availability.is_torch_available()
    assert availability.is_torch_greater_or_equal("2.5") and not availability.is_torch_greater_or_equal("2.14")
    assert availability.is_torch_less_or_equal("2.13") and not availability.is_torch_less_or_equal("2.12.1")


def test_loaded_parameters_keep_their_values() -> None:
    parameter = ms.Parameter(ms.Tensor(np.full((2, 3), 7.0, np.float32)))
    parameter._is_hf_initialized = True
    initialization.zeros_(parameter)
    assert (parameter.asnumpy() == 7.0).all()
    parameter._is_hf_initialized = False
    initialization.copy_(parameter, ms.Tensor([1.0, 2.0, 3.0]))
    assert parameter.asnumpy().tolist() == [[1.0, 2.0, 3.0]] * 2


class _Model:
    def __init__(self) -> None:
        self.config = SimpleNamespace(use_cache=True, return_dict=True)
        self.training, self.gradient_checkpointing = False, False

    @forward_decorators.merge_with_config_defaults
    def construct(self, x: Any, use_cache: bool | None = None, **kwargs: Any) -> Any:
        return x, use_cache, getattr(self.config, "is_causal", None)


def test_arguments_from_the_configuration() -> None:
    model = _Model()
    assert model.construct(1) == (1, True, None)
    assert model.construct(1, False) == (1, False, None)
    assert model.construct(1, None, is_causal=False) == (1, True, False)
    assert not hasattr(model.config, "is_causal")
    model.training = model.gradient_checkpointing = True
    assert model.construct(1, use_cache=True)[1] is False
