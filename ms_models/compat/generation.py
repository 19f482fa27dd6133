"""`generate`: tokens one after the other, greedy or drawn, as transformers chooses them."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, ops

from . import generation_rules as rules
from .beam_search import BeamSearch, log_softmax
from .generation_config import FILE, GenerationConfig, settled
from .generation_inputs import GenerationInputs
from .model_outputs import (
    GenerateBeamDecoderOnlyOutput,
    GenerateBeamEncoderDecoderOutput,
    GenerateDecoderOnlyOutput,
    GenerateEncoderDecoderOutput,
)
from .random import multinomial

_REFUSED = (
    "assistant_model",
    "negative_prompt_ids",
    "negative_prompt_attention_mask",
    "custom_generate",
    "inputs_embeds",
)
_HARMLESS = ("synced_gpus", "trust_remote_code", "use_model_defaults", "assistant_tokenizer")


_KINDS = {
    (False, False): GenerateDecoderOnlyOutput,
    (False, True): GenerateBeamDecoderOnlyOutput,
    (True, False): GenerateEncoderDecoderOutput,
    (True, True): GenerateBeamEncoderDecoderOutput,
}
"""By whether there is an encoder, and whether there are beams."""


class GenerationMixin(GenerationInputs):
    """Adds `generate` to a model whose outputs have `logits`."""

    generation_config: Any
    main_input_name: str

    def _new_generation_config(self) -> GenerationConfig:
        return GenerationConfig.from_model_config(self.config)

    def _load_generation_config(self, directory: Path, given: Any) -> None:
        """What `from_pretrained` was given, or the directory has."""
        if given is not None:
            self.generation_config = given
        elif (directory / FILE).is_file():
            self.generation_config = GenerationConfig.from_pretrained(directory)

    def generate(
        self,
        inputs: Tensor | None = None,
        generation_config: Any = None,
        logits_processor: Any = None,
        stopping_criteria: Any = None,
        prefix_allowed_tokens_fn: Any = None,
        streamer: Any = None,
        tokenizer: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Continue sequences.

        Args:
            inputs: ids `[batch, length]`, padded on the left; of an encoder-decoder model what the encoder reads.
            generation_config: options; those in `kwargs` go before it, the model's own come after it.
            logits_processor: further changes of the scores, after those that the options ask for.
            stopping_criteria: further reasons to end a sequence.
            prefix_allowed_tokens_fn: the tokens that may follow, from the row and its ids.
            streamer: gets the ids as they come, by `put` and `end`.
            tokenizer: for `stop_strings`.
            kwargs: options, and arguments of the model such as `attention_mask`.

        Returns:
            Ids `[batch * num_return_sequences, length]`, or an output with more if `return_dict_in_generate` is on.

        Raises:
            ValueError: an option that is not done, an argument that the model does not take, no room for a new token.
        """
        for name in _REFUSED:
            if kwargs.pop(name, None) is not None:
                raise ValueError(f"generate({name}=...) is not done on MindSpore; leave it away")
        kwargs = {name: value for name, value in kwargs.items() if name not in _HARMLESS}
        options, given = settled(self.generation_config, generation_config, kwargs)
        copies = max(options.num_beams, options.num_return_sequences)
        if options.num_return_sequences > options.num_beams > 1:
            raise ValueError(f"num_return_sequences={copies} needs as many beams; num_beams is {options.num_beams}")
        if options.num_return_sequences > 1 and options.num_beams == 1 and not options.do_sample:
            raise ValueError("greedy generation gives one sequence; use do_sample=True for num_return_sequences > 1")
        self._check_arguments(given)
        first = self._first_ids(inputs, given, options)
        ids, state = self._prepared(first, given, options)
        if copies > 1:
            ids = ops.repeat_interleave(ids, copies, 0)
            state = {name: _repeated(value, copies) for name, value in state.items()}
        self._set_lengths(options, ids.shape[1])
        change = rules.logits_processors(
            options, ids.shape[1], state.get("attention_mask"), prefix_allowed_tokens_fn, logits_processor
        )
        stop = rules.stopping_criteria(self.config, options, stopping_criteria, tokenizer)
        self._new_cache(options, state)
        if options.num_beams > 1:
            if streamer is not None:
                raise ValueError("generate: beams change until the end; a streamer needs num_beams=1")
            return self._search(ids, state, options, change, stop)
        return self._loop(ids, state, options, change, stop, streamer)

    def _loop(
        self, ids: Tensor, state: dict[str, Any], options: GenerationConfig, change: Any, stop: Any, streamer: Any
    ) -> Any:
        record = _Record(options, self._has_encoder())
        running = np.ones(ids.shape[0], np.int64)
        ends = any(hasattr(criterion, "eos_token_id") for criterion in stop)
        pad = _pad(options)
        if streamer is not None:
            streamer.put(ids)
        while running.any():
            outputs = self._step(ids, state, record.step)
            logits = outputs.logits[:, -1].astype(ms.float32)
            scores = change(ids, logits)
            record.add(outputs, logits, scores)
            if options.do_sample:
                chosen = multinomial(ops.softmax(scores, -1), 1).asnumpy()[:, 0]
            else:
                chosen = scores.asnumpy().argmax(-1)
            if ends:
                if pad is None:
                    raise ValueError("generate: an end of sequence needs a pad_token_id for the others in the batch")
                chosen = chosen * running + pad * (1 - running)
            new = Tensor(chosen[:, None], ids.dtype)
            ids = ops.cat((ids, new), -1)
            if streamer is not None:
                streamer.put(new[:, 0])
            running &= ~stop(ids, record.scores).asnumpy()
        if streamer is not None:
            streamer.end()
        return record.output(ids, state, self._cache_name()) if options.return_dict_in_generate else ids

    def _search(self, ids: Tensor, state: dict[str, Any], options: GenerationConfig, change: Any, stop: Any) -> Any:
        """Beam search."""
        record = _Record(options, self._has_encoder())
        search = BeamSearch(ids.asnumpy(), options, _fill(options))
        goes_on = True
        while goes_on:
            outputs = self._step(ids, state, record.step)
            logits = outputs.logits[:, -1].astype(ms.float32)
            scores = change(ids, log_softmax(logits))
            record.add(outputs, logits, scores)
            goes_on = search.advance(scores.asnumpy(), lambda rows: stop(Tensor(rows), record.scores).asnumpy())
            ids = Tensor(search.live())
            self._reorder(state, Tensor(search.sources().astype(np.int64)))
        sequences, totals, origins = search.result(options.num_return_sequences)
        if not options.return_dict_in_generate:
            return Tensor(sequences)
        beams = {"beam_indices": Tensor(origins), "sequences_scores": Tensor(totals) if options.output_scores else None}
        return record.output(Tensor(sequences), state, self._cache_name(), beams)

    def _reorder(self, state: dict[str, Any], sources: Tensor) -> None:
        """Each beam goes on with the keys and values of the beam that it continues."""
        name = self._cache_name()
        cache = state.get(name)
        if cache is None:
            return
        if hasattr(self, "_reorder_cache"):
            state[name] = self._reorder_cache(cache, sources)
        elif hasattr(cache, "reorder_cache"):
            cache.reorder_cache(sources)
        else:
            raise ValueError(f"{type(self).__name__} has a cache that beams cannot share; define _reorder_cache")

    def _step(self, ids: Tensor, state: dict[str, Any], step: int) -> Any:
        """One call of the model; `state` then describes the next one."""
        arguments = self._step_arguments(ids, state, step)
        if "return_dict" in self._model_arguments() or self._takes_anything():
            arguments["return_dict"] = True
        outputs = self(**arguments)  # type: ignore[operator]
        self._advance(outputs, state)
        return outputs

    def _set_lengths(self, options: GenerationConfig, length: int) -> None:
        """`max_length` and `min_length` of the whole sequences."""
        if options.max_new_tokens is not None:
            options.max_length = options.max_new_tokens + length
        elif not options._length_is_given:
            options.max_length += length
            room = getattr(self.config, "max_position_embeddings", None)
            options.max_length = options.max_length if room is None else min(options.max_length, room)
        if options.min_new_tokens is not None:
            options.min_length = options.min_new_tokens + length
        if length >= options.max_length:
            raise ValueError(f"generate: the prompt has {length} tokens, and max_length is {options.max_length}")

    def _check_arguments(self, given: dict[str, Any]) -> None:
        """Misspelled options end up here."""
        known = self._model_arguments() | set(inspect.signature(self.prepare_inputs_for_generation).parameters)
        known |= {"output_attentions", "output_hidden_states", "cache", "past_key_values"}
        if self._has_encoder():
            known |= set(inspect.signature(self.get_encoder().construct).parameters) | {"decoder_input_ids"}
        unknown = [name for name, value in given.items() if value is not None and name not in known]
        if unknown:
            raise ValueError(f"generate: {unknown} are neither options nor arguments of {type(self).__name__}")


class _Record:
    """What `return_dict_in_generate` wants to know of every step."""

    def __init__(self, options: GenerationConfig, encoded: bool) -> None:
        wanted = options.return_dict_in_generate
        self.encoded, self.step = encoded, 0
        self.scores: tuple[Tensor, ...] | None = () if wanted and options.output_scores else None
        self.logits: tuple[Tensor, ...] | None = () if wanted and options.output_logits else None
        names = []
        if wanted and options.output_attentions:
            names += ["decoder_attentions", "cross_attentions"] if encoded else ["attentions"]
        if wanted and options.output_hidden_states:
            names += ["decoder_hidden_states"] if encoded else ["hidden_states"]
        self.more: dict[str, tuple[Any, ...]] = dict.fromkeys(names, ())

    def add(self, outputs: Any, logits: Tensor, scores: Tensor) -> None:
        """One more step."""
        self.step += 1
        self.scores = None if self.scores is None else (*self.scores, scores)
        self.logits = None if self.logits is None else (*self.logits, logits)
        self.more = {name: (*values, getattr(outputs, name)) for name, values in self.more.items()}

    def output(self, ids: Tensor, state: dict[str, Any], cache: str, beams: dict[str, Any] | None = None) -> Any:
        """The result with everything that was asked for."""
        more: dict[str, Any] = {**self.more, **(beams or {})}
        if self.encoded:
            encoder = state["encoder_outputs"]
            more |= {
                f"encoder_{name}": encoder.get(name)
                for name in ("attentions", "hidden_states")
                if f"decoder_{name}" in more
            }
        kind = _KINDS[self.encoded, beams is not None]
        return kind(sequences=ids, scores=self.scores, logits=self.logits, cache=state.get(cache), **more)


def _pad(options: GenerationConfig) -> int | None:
    """What follows an end of sequence: the padding, else the end itself."""
    if options.pad_token_id is not None:
        return int(options.pad_token_id)
    ends = options.eos_token_id
    return None if ends is None else int(np.atleast_1d(ends)[0])


def _fill(options: GenerationConfig) -> int:
    """What follows an end in beam search: as in transformers, a padding of 0 counts as none."""
    if options.eos_token_id is None:
        return -1
    return int(options.pad_token_id or np.atleast_1d(options.eos_token_id)[0])


def _repeated(value: Any, times: int) -> Any:
    if isinstance(value, Tensor):
        return ops.repeat_interleave(value, times, 0)
    if isinstance(value, dict):
        return type(value)(**{name: _repeated(item, times) for name, item in value.items()})
    return value
