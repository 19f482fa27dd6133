"""`generate` against transformers, token by token, on a model that is written down for both sides."""

from __future__ import annotations

import functools
from typing import Any

import mindspore as ms
import numpy as np
import pytest
import torch
import transformers
from mindspore import Parameter, Tensor, ops

from ms_models.compat.generation import GenerationMixin
from ms_models.compat.logits_processors import LogitsProcessor, LogitsProcessorList
from ms_models.compat.model_outputs import CausalLMOutputWithPast
from ms_models.compat.pretrained import PreTrainedModel
from ms_models.compat.random import manual_seed
from ms_models.compat.stopping_criteria import StoppingCriteria, StoppingCriteriaList

VOCAB, SIZE = 23, 8
RNG = np.random.default_rng(3)
EMBED = RNG.standard_normal((VOCAB, SIZE)).astype(np.float32)
HEAD = (2 * RNG.standard_normal((SIZE, VOCAB))).astype(np.float32)
PROMPT = np.array([[0, 0, 5, 7, 9], [3, 4, 6, 8, 11]])
MASK = (PROMPT != 0).astype(np.int64)


class Config(transformers.PretrainedConfig):
    model_type = "toy"

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, **kwargs})
        self.vocab_size, self.hidden_size, self.num_hidden_layers = VOCAB, SIZE, 1


class TorchToy(transformers.PreTrainedModel, transformers.GenerationMixin):
    """Running means of embeddings, projected."""

    config_class = Config

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.embed = torch.nn.Parameter(torch.tensor(EMBED))
        self.head = torch.nn.Parameter(torch.tensor(HEAD))

    def forward(self, input_ids: Any, attention_mask: Any = None, **kwargs: Any) -> Any:
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        total = (self.embed[input_ids] * mask[..., None]).cumsum(1)
        states = total / mask.cumsum(1).clamp(min=1)[..., None]
        return transformers.modeling_outputs.CausalLMOutputWithPast(logits=states @ self.head, hidden_states=(states,))


class Toy(PreTrainedModel, GenerationMixin):
    """The same."""

    config_class = Config

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.embed = Parameter(Tensor(EMBED))
        self.head = Parameter(Tensor(HEAD))

    def construct(self, input_ids: Tensor, attention_mask: Tensor | None = None, **kwargs: Any) -> Any:
        mask = ops.ones_like(input_ids) if attention_mask is None else attention_mask
        total = (self.embed[input_ids] * mask.expand_dims(-1)).cumsum(1)
        states = total / ops.clamp(mask.cumsum(1), 1, None).expand_dims(-1)
        return CausalLMOutputWithPast(logits=ops.matmul(states, self.head), hidden_states=(states,))


class Older(Toy):
    """The same with keys and values as transformers 4 had them: a tuple, and inputs that the model picks."""

    calls: list[tuple[int, ...]]

    def construct(  # type: ignore[override]
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Any = None,
        use_cache: bool | None = None,
        return_dict: bool | None = None,
    ) -> Any:
        self.calls.append((*input_ids.shape, 0 if position_ids is None else position_ids.shape[-1]))
        new = self.embed[input_ids].expand_dims(1)  # [batch, heads, positions, size]
        keys = new if past_key_values is None else ops.cat((past_key_values[0][0], new), 2)
        mask = ops.ones(keys.shape[:1] + keys.shape[2:3]) if attention_mask is None else attention_mask
        total = (keys[:, 0] * mask.expand_dims(-1)).cumsum(1) / ops.clamp(mask.cumsum(1), 1, None).expand_dims(-1)
        logits = ops.matmul(total, self.head)[:, -input_ids.shape[1] :]
        return CausalLMOutputWithPast(logits=logits, past_key_values=((keys, keys),) if use_cache else None)

    def prepare_inputs_for_generation(
        self, input_ids: Tensor, past_key_values: Any = None, attention_mask: Any = None, **kwargs: Any
    ) -> dict[str, Any]:
        position_ids = kwargs.get("position_ids")
        if attention_mask is not None and position_ids is None:
            position_ids = attention_mask.cumsum(-1) - 1
        if past_key_values is not None:
            input_ids = input_ids[:, past_key_values[0][0].shape[2] :]
            position_ids = position_ids[:, -input_ids.shape[1] :]
        return {
            "input_ids": input_ids,
            "past_key_values": past_key_values,
            "use_cache": kwargs.get("use_cache"),
            "position_ids": position_ids,
            "attention_mask": attention_mask,
        }


def both(**options: Any) -> tuple[Any, Any]:
    config = options.pop("config", {})
    want = TorchToy(Config(**config)).generate(
        torch.tensor(PROMPT), attention_mask=torch.tensor(MASK), use_cache=False, **options
    )
    have = Toy(Config(**config)).generate(Tensor(PROMPT), attention_mask=Tensor(MASK), use_cache=False, **options)
    return want, have


OPTIONS: dict[str, dict[str, Any]] = {
    "default length": {},
    "new tokens": {"max_new_tokens": 7},
    "whole length": {"max_length": 11},
    "another end": {"max_new_tokens": 12, "eos_token_id": [7, 9, 13, 20]},
    "no end": {"max_new_tokens": 12, "config": {"eos_token_id": None}},
    "not before": {"max_new_tokens": 12, "min_new_tokens": 5, "eos_token_id": list(range(2, 12))},
    "shortest": {"max_new_tokens": 12, "min_length": 8, "eos_token_id": list(range(2, 12))},
    "penalty": {"max_new_tokens": 12, "repetition_penalty": 1.4},
    "phrases": {"max_new_tokens": 12, "no_repeat_ngram_size": 2},
    "bad words": {"max_new_tokens": 12, "bad_words_ids": [[22], [18, 18]]},
    "last token": {"max_new_tokens": 6, "forced_eos_token_id": 2},
    "never": {"max_new_tokens": 6, "suppress_tokens": [3, 4, 5, 6], "begin_suppress_tokens": [7, 8, 9]},
}


@functools.cache
def greedy(name: str) -> tuple[list[list[int]], list[list[int]]]:
    want, have = both(**OPTIONS[name])
    assert have.dtype == ms.int64
    return want.tolist(), have.asnumpy().tolist()


@pytest.mark.parametrize("name", OPTIONS)
def test_greedy_tokens(name: str) -> None:
    want, have = greedy(name)
    assert have == want


def test_options_reach_the_tokens() -> None:
    """The cases above are not all alike."""
    names = ("default length", "another end", "penalty", "phrases", "bad words", "last token", "never")
    assert len({str(greedy(name)[1]) for name in names}) == len(names)


BEAMS: dict[str, dict[str, Any]] = {
    "two": {"num_beams": 2, "max_new_tokens": 9},
    "several ends": {"num_beams": 3, "max_new_tokens": 9, "eos_token_id": [7, 13, 20]},
    "early": {"num_beams": 3, "max_new_tokens": 12, "early_stopping": True, "eos_token_id": [7, 11, 13, 20]},
    "never early": {"num_beams": 3, "max_new_tokens": 9, "early_stopping": "never", "eos_token_id": [13, 18]},
    "long": {"num_beams": 3, "max_new_tokens": 9, "length_penalty": 2.5, "eos_token_id": [13, 18]},
    "short": {"num_beams": 3, "max_new_tokens": 9, "length_penalty": -1.0, "eos_token_id": [13, 18]},
    "no end": {"num_beams": 2, "max_new_tokens": 6, "config": {"eos_token_id": None}},
    "several": {"num_beams": 4, "num_return_sequences": 3, "max_new_tokens": 9, "no_repeat_ngram_size": 2},
}


@pytest.mark.parametrize("name", BEAMS)
def test_beams(name: str) -> None:
    options = {**BEAMS[name], "return_dict_in_generate": True, "output_scores": True}
    want, have = both(**options)
    assert list(have.keys()) == list(want.keys())
    assert have.sequences.asnumpy().tolist() == want.sequences.tolist()
    assert have.beam_indices.asnumpy().tolist() == want.beam_indices.tolist()
    np.testing.assert_allclose(have.sequences_scores.asnumpy(), want.sequences_scores.numpy(), 1e-5)
    assert len(have.scores) == len(want.scores)


def test_beams_drawn_with_a_seed() -> None:
    options = {"num_beams": 3, "do_sample": True, "max_new_tokens": 6, "return_dict_in_generate": True}
    found = []
    for seed in (3, 3, 4):
        manual_seed(seed)
        found.append(Toy(Config()).generate(Tensor(PROMPT), output_scores=True, **options))
    first, again, other = (each.sequences.asnumpy().tolist() for each in found)
    assert first == again != other
    assert all(np.isfinite(each.sequences_scores.asnumpy()).all() for each in found)


def test_configurations_in_their_order() -> None:
    """Arguments go before the given configuration, that before the model's, that before the defaults."""
    torch_model, model = TorchToy(Config()), Toy(Config())
    for each in (torch_model, model):
        each.generation_config.max_new_tokens = 4
        each.generation_config.repetition_penalty = 1.4
    given = transformers.GenerationConfig(max_new_tokens=9, use_cache=False)
    want = torch_model.generate(torch.tensor(PROMPT), attention_mask=torch.tensor(MASK), generation_config=given)
    have = model.generate(Tensor(PROMPT), attention_mask=Tensor(MASK), generation_config=given)
    assert have.asnumpy().tolist() == want.tolist() and have.shape[1] == PROMPT.shape[1] + 9
    assert model.generate(Tensor(PROMPT), generation_config=given, max_new_tokens=2).shape[1] == PROMPT.shape[1] + 2
    assert given.max_new_tokens == 9 and model.generation_config.max_new_tokens == 4


def test_scores_and_states_are_returned() -> None:
    options = {
        "max_new_tokens": 3,
        "return_dict_in_generate": True,
        "output_scores": True,
        "output_logits": True,
        "output_hidden_states": True,
        "repetition_penalty": 1.2,
    }
    want, have = both(**options)
    assert list(have.keys()) == list(want.keys())
    assert have.sequences.asnumpy().tolist() == want.sequences.tolist()
    for kind in ("scores", "logits"):
        for one, other in zip(have[kind], want[kind], strict=True):
            np.testing.assert_allclose(one.asnumpy(), other.detach().numpy(), 1e-5, 1e-5)
    assert [states[0].shape for states in have.hidden_states] == [
        tuple(states[0].shape) for states in want.hidden_states
    ]


def test_older_models_use_their_cache() -> None:
    model = Older(Config())
    model.calls = []
    cached = model.generate(Tensor(PROMPT), attention_mask=Tensor(MASK), max_new_tokens=6)
    assert model.calls == [(2, 5, 5)] + [(2, 1, 1)] * 5
    plain = model.generate(Tensor(PROMPT), attention_mask=Tensor(MASK), max_new_tokens=6, use_cache=False)
    assert model.calls[6:] == [(2, n, n) for n in range(5, 11)]
    assert cached.asnumpy().tolist() == plain.asnumpy().tolist() == both(max_new_tokens=6)[0].tolist()


class Cached(Toy):
    """The same with the cache of transformers 5."""

    calls: list[tuple[int, ...]]

    def construct(  # type: ignore[override]
        self, input_ids: Tensor, attention_mask: Any = None, cache: Any = None, position_ids: Any = None, **kwargs: Any
    ) -> Any:
        self.calls.append((input_ids.shape[1], *(() if position_ids is None else position_ids[0].tolist())))
        keys = self.embed[input_ids].expand_dims(1)
        if cache is not None:
            keys = cache.update(keys, keys, 0)[0]
        mask = ops.ones(keys.shape[:1] + keys.shape[2:3]) if attention_mask is None else attention_mask
        total = (keys[:, 0] * mask.expand_dims(-1)).cumsum(1) / ops.clamp(mask.cumsum(1), 1, None).expand_dims(-1)
        return CausalLMOutputWithPast(logits=ops.matmul(total, self.head)[:, -input_ids.shape[1] :], cache=cache)


@pytest.mark.parametrize("name", ["cache", "past_key_values"])
def test_a_cache_is_continued(name: str) -> None:
    """All ids with the cache of the first of them, or, with a mask of everything, the new ones alone."""
    model = Cached(Config(eos_token_id=None))
    model.calls = []
    prompt = Tensor(PROMPT[1:])
    first = model.generate(prompt, max_new_tokens=3, return_dict_in_generate=True)
    assert model.calls == [(5, 0, 1, 2, 3, 4), (1, 5), (1, 6)] and first.cache.get_seq_length() == 7
    whole = model.generate(prompt, max_new_tokens=6)
    model.calls = []
    rest = model.generate(first.sequences, max_new_tokens=3, **{name: first.cache})
    assert model.calls == [(1, 7), (1, 8), (1, 9)]
    assert rest.asnumpy().tolist() == whole.asnumpy().tolist()
    cache = model.generate(prompt, max_new_tokens=3, return_dict_in_generate=True).cache
    mask = Tensor(np.ones((1, 8), np.int64))
    new = model.generate(first.sequences[:, 7:], max_new_tokens=3, attention_mask=mask, **{name: cache})
    assert new.asnumpy().tolist() == whole[:, 7:].asnumpy().tolist()


class Even(LogitsProcessor):
    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        odd = ops.arange(scores.shape[-1]) % 2 == 1
        return ops.where(odd, Tensor(-1e9, ms.float32), scores)


class Big(StoppingCriteria):
    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Any:
        return input_ids[:, -1] > 10


def test_rules_of_the_user() -> None:
    ids = Toy(Config()).generate(
        Tensor(PROMPT), max_new_tokens=8, logits_processor=LogitsProcessorList([Even()]), use_cache=False
    )
    assert (ids.asnumpy()[:, 5:] % 2 == 0).all()
    ids = Toy(Config()).generate(Tensor(PROMPT), max_new_tokens=30, stopping_criteria=StoppingCriteriaList([Big()]))
    for row in ids.asnumpy()[:, 5:]:
        end = np.argmax((row > 10) | (row == 2))
        assert (row[end + 1 :] == 0).all() and not (row[:end] > 10).any()


def test_sampling_follows_the_seed_and_the_distribution() -> None:
    model = Toy(Config(eos_token_id=None))
    manual_seed(11)
    first = model.generate(Tensor(PROMPT[1:]), do_sample=True, max_new_tokens=6, num_return_sequences=3, top_p=0.9)
    manual_seed(11)
    again = model.generate(Tensor(PROMPT[1:]), do_sample=True, max_new_tokens=6, num_return_sequences=3, top_p=0.9)
    other = model.generate(Tensor(PROMPT[1:]), do_sample=True, max_new_tokens=6, num_return_sequences=3, top_p=0.9)
    assert first.shape == (3, 11)
    assert first.asnumpy().tolist() == again.asnumpy().tolist() != other.asnumpy().tolist()
    drawn = model.generate(
        Tensor(PROMPT[1:]), do_sample=True, max_new_tokens=1, num_return_sequences=4000, temperature=2.0, top_k=6
    )
    logits = model(Tensor(PROMPT[1:])).logits[0, -1].asnumpy() / 2
    kept = np.argsort(-logits)[:6]
    chances = np.exp(logits[kept]) / np.exp(logits[kept]).sum()
    found = np.bincount(drawn.asnumpy()[:, -1], minlength=VOCAB) / 4000
    assert set(np.flatnonzero(found)) <= set(kept.tolist())
    # Four standard deviations of a frequency among 4000 draws.
    np.testing.assert_array_less(np.abs(found[kept] - chances), 4 * np.sqrt(chances * (1 - chances) / 4000) + 1e-9)


def test_a_streamer_sees_every_token() -> None:
    class Streamer:
        def __init__(self) -> None:
            self.seen: list[Any] = []

        def put(self, value: Tensor) -> None:
            self.seen.append(value.tolist())

        def end(self) -> None:
            self.seen.append("end")

    streamer = Streamer()
    ids = Toy(Config()).generate(Tensor(PROMPT[1:]), max_new_tokens=2, streamer=streamer)
    assert streamer.seen == [PROMPT[1:].tolist(), *[[token] for token in ids.asnumpy()[0, 5:].tolist()], "end"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_beams": 3, "num_beam_groups": 3}, "num_beam_groups=3"),
        ({"num_beams": 2, "num_return_sequences": 3}, "num_beams is 2"),
        ({"num_beams": 2, "streamer": object()}, "streamer needs num_beams=1"),
        ({"penalty_alpha": 0.6}, "penalty_alpha=0.6"),
        ({"assistant_model": object()}, "assistant_model"),
        ({"max_length": 4}, "max_length is 4"),
        ({"temprature": 0.3}, "temprature"),
        ({"num_return_sequences": 2}, "do_sample=True"),
        ({"cache_implementation": "static"}, "cache_implementation='static'"),
        ({"stop_strings": ["."]}, "tokenizer"),
    ],
)
def test_what_is_not_done_is_refused(options: dict[str, Any], message: str) -> None:
    class Strict(Toy):
        def construct(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Any:  # type: ignore[override]
            return super().construct(input_ids, attention_mask)

        def prepare_inputs_for_generation(self, input_ids: Tensor, attention_mask: Any = None) -> dict[str, Any]:  # type: ignore[override]
            return {"input_ids": input_ids, "attention_mask": attention_mask}

    with pytest.raises(ValueError, match=message):
        Strict(Config()).generate(Tensor(PROMPT), **options)
