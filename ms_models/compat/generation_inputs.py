"""What a model is called with in each step of `generate`: ids, mask, positions, cache."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import numpy as np
from mindspore import Tensor, ops

from .caches import DynamicCache, EncoderDecoderCache
from .generation_config import GenerationConfig

_CACHE_NAMES = ("cache", "past_key_values", "cache_params")
_PER_TOKEN = ("token_type_ids", "mm_token_type_ids")


class GenerationInputs:
    """The part of `generate` that knows how models take their arguments.

    Models written for transformers 5 take `cache`, and are given one. Older ones take `past_key_values`: they make one
    in the first step, and their `prepare_inputs_for_generation` picks the ids and the positions itself.
    """

    config: Any
    construct: Any
    get_encoder: Any

    def prepare_inputs_for_generation(
        self,
        input_ids: Tensor,
        next_sequence_length: int | None = None,
        cache: Any = None,
        attention_mask: Tensor | None = None,
        is_first_iteration: bool = False,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Arguments of one call; models override it.

        Args:
            input_ids: all ids so far.
            next_sequence_length: how many of them, from the end, the model has not seen; None for all.
            cache: keys and values of those it has seen.
            attention_mask: of all ids.
            is_first_iteration: whether this is the prompt.
            kwargs: further arguments of the model.
        """
        decoder = "decoder_" if self._has_encoder() else ""
        if next_sequence_length is not None:
            input_ids = input_ids[:, -next_sequence_length:]
        arguments: dict[str, Any] = {f"{decoder}input_ids": input_ids}
        if cache is not None:
            arguments[self._cache_name()] = cache
        for name in (f"{decoder}position_ids", *_PER_TOKEN):
            if (value := kwargs.pop(name, None)) is not None:
                arguments[name] = value[..., -input_ids.shape[1] :]
        if attention_mask is not None:
            arguments["attention_mask"] = attention_mask
        return arguments | {name: value for name, value in kwargs.items() if name not in (*arguments, "labels")}

    # -- what the model takes
    @functools.cached_property
    def _signature(self) -> inspect.Signature:
        return inspect.signature(type(self).construct)

    def _model_arguments(self) -> set[str]:
        return set(self._signature.parameters) - {"self"}

    def _takes_anything(self) -> bool:
        return any(p.kind is inspect.Parameter.VAR_KEYWORD for p in self._signature.parameters.values())

    def _cache_name(self) -> str:
        return next((name for name in _CACHE_NAMES if name in self._signature.parameters), "cache")

    def _is_older(self) -> bool:
        """Whether the model prepares its inputs as before transformers 5."""
        own = type(self).prepare_inputs_for_generation is not GenerationInputs.prepare_inputs_for_generation
        return own and self._cache_name() != "cache"

    def _has_encoder(self) -> bool:
        return bool(getattr(self.config, "is_encoder_decoder", False))

    # -- before the first step
    def _first_ids(self, inputs: Tensor | None, given: dict[str, Any], options: GenerationConfig) -> Tensor:
        """The ids that `generate` was given, under either name, or one beginning of a sequence."""
        named = given.pop("input_ids", None)
        if inputs is not None and named is not None:
            raise ValueError("generate: give inputs or input_ids, not both")
        inputs = named if inputs is None else inputs
        if inputs is not None:
            return inputs
        if options.bos_token_id is None:
            raise ValueError("generate: without input_ids the options need a bos_token_id")
        return Tensor(np.full((1, 1), options.bos_token_id, np.int64))

    def _prepared(self, ids: Tensor, given: dict[str, Any], options: GenerationConfig) -> tuple[Tensor, dict[str, Any]]:
        """The ids to continue, and the arguments that go with them."""
        # A cache from an earlier call may come by its older name.
        rename = dict.fromkeys(_CACHE_NAMES, self._cache_name())
        state = {rename.get(name, name): value for name, value in given.items() if value is not None}
        state["use_cache"] = options.use_cache
        for name in ("output_attentions", "output_hidden_states"):
            if getattr(options, name):
                state[name] = True
        takes = self._model_arguments()
        if "attention_mask" not in state and ("attention_mask" in takes or self._has_encoder()):
            state["attention_mask"] = _mask(ids, options)
        if self._has_encoder():
            return self._encoded(ids, state, options)
        if "position_ids" in takes and "position_ids" not in state and not self._is_older():
            state["position_ids"] = _positions(ids, state)
        mask = state.get("attention_mask")
        begins = self._cache_name() not in state
        if mask is not None and begins and not self._is_older() and bool((mask.asnumpy() == 1).all()):
            del state["attention_mask"]  # nothing is padded
        if "logits_to_keep" in takes:
            state.setdefault("logits_to_keep", 1)
        return ids, state

    def _encoded(self, ids: Tensor, state: dict[str, Any], options: GenerationConfig) -> tuple[Tensor, dict[str, Any]]:
        """The encoder runs once; what is continued begins with `decoder_start_token_id`."""
        if state.get("encoder_outputs") is None:
            encoder = self.get_encoder()
            takes = set(inspect.signature(encoder.construct).parameters)
            arguments = {name: value for name, value in state.items() if name in takes and name != "use_cache"}
            state["encoder_outputs"] = encoder(ids, **arguments, return_dict=True)
        start = options.decoder_start_token_id if options.decoder_start_token_id is not None else options.bos_token_id
        if start is None:
            raise ValueError("generate: an encoder-decoder model needs decoder_start_token_id or bos_token_id")
        begin = Tensor(np.broadcast_to(np.asarray(start, np.int64).reshape(-1, 1), (ids.shape[0], 1)).copy())
        given = state.pop("decoder_input_ids", None)
        if given is None:
            return begin, state
        starts = (given[:, 0] == begin[:, 0]).asnumpy().all()
        return given if starts else ops.cat((begin, given), -1), state

    def _new_cache(self, options: GenerationConfig, state: dict[str, Any]) -> None:
        """A cache for models that take one as transformers 5 does."""
        name = self._cache_name()
        if not options.use_cache or name in state or name != "cache" or "cache" not in self._model_arguments():
            return
        text = self.config.get_text_config(decoder=True)
        cache: Any = DynamicCache(config=text)
        state[name] = EncoderDecoderCache(cache, DynamicCache(config=text)) if self._has_encoder() else cache

    # -- every step
    def _step_arguments(self, ids: Tensor, state: dict[str, Any], step: int) -> dict[str, Any]:
        seen = _seen(state.get(self._cache_name())) if state["use_cache"] else 0
        unseen = self._unseen(ids, state, seen, step)
        parameters = inspect.signature(self.prepare_inputs_for_generation).parameters
        extra: dict[str, Any] = {}
        if "next_sequence_length" in parameters:
            extra["next_sequence_length"] = unseen
        if "is_first_iteration" in parameters:
            extra["is_first_iteration"] = step == 0
        takes = self._model_arguments()
        if "cache_position" in takes | set(parameters):
            number = ids.shape[1] if unseen is None else unseen
            extra["cache_position"] = Tensor(np.arange(seen, seen + number))
        arguments = dict(self.prepare_inputs_for_generation(ids, **state, **extra))
        return {name: value for name, value in arguments.items() if name in takes or self._passes_on(name)}

    def _unseen(self, ids: Tensor, state: dict[str, Any], seen: int, step: int) -> int | None:
        """How many ids, from the end, the model has not seen; None for all."""
        if not seen:
            return None
        if step:
            return 1
        # A cache from an earlier call: the mask is of everything, so it tells whether the ids are.
        mask = state.get("decoder_attention_mask" if self._has_encoder() else "attention_mask")
        return ids.shape[1] - seen if mask is None or mask.shape[1] == ids.shape[1] else None

    def _passes_on(self, name: str) -> bool:
        """Whether the model takes an argument that it does not name; options of `generate` need not reach it."""
        return self._takes_anything() if name in ("use_cache", "cache_position") else True

    def _advance(self, outputs: Any, state: dict[str, Any]) -> None:
        """Keep the cache, and make room for the token that comes."""
        name = self._cache_name()
        cache = next((outputs[kept] for kept in _CACHE_NAMES if kept in outputs), None)
        if state["use_cache"] and cache is not None:
            state[name] = cache
        decoder = "decoder_" if self._has_encoder() else ""
        for kind in _PER_TOKEN:
            if (value := state.get(kind)) is not None:
                state[kind] = ops.cat((value, value[:, -1:]), -1)
        if (mask := state.get(f"{decoder}attention_mask")) is not None:
            state[f"{decoder}attention_mask"] = ops.cat((mask, ops.ones_like(mask[:, :1])), -1)
        if (positions := state.get(f"{decoder}position_ids")) is not None:
            state[f"{decoder}position_ids"] = ops.cat((positions, positions[..., -1:] + 1), -1)


def _seen(cache: Any) -> int:
    """Positions that a cache has: a `Cache`, or a tuple of keys and values for each layer."""
    if cache is None:
        return 0
    if hasattr(cache, "get_seq_length"):
        return int(cache.get_seq_length())
    return int(cache[0][0].shape[-2])


def _mask(ids: Tensor, options: GenerationConfig) -> Tensor:
    """Ones, but for paddings where these are no ends of sequences."""
    tokens, pad = ids.asnumpy(), options.pad_token_id
    ends = [] if options.eos_token_id is None else np.atleast_1d(options.eos_token_id).tolist()
    if pad is None or pad in ends or not (tokens == pad).any():
        return Tensor(np.ones(tokens.shape, np.int64))
    return Tensor((tokens != pad).astype(np.int64))


def _positions(ids: Tensor, state: dict[str, Any]) -> Tensor:
    """Numbers of the tokens that count, 0 for the others."""
    mask = state.get("attention_mask")
    if mask is None:
        return Tensor(np.broadcast_to(np.arange(ids.shape[1]), ids.shape).copy())
    numbers = mask.asnumpy().astype(np.int64)
    return Tensor(np.where(numbers == 0, 0, numbers.cumsum(-1) - 1))
