"""Special tokens of a tokenizer, taken over by the configurations of a model before it is trained with it."""

from __future__ import annotations

from typing import Any


def align_special_tokens(model: Any, processing_class: Any) -> None:
    """Tokens that the tokenizer defines replace those of the model; ends of a text are added to the ones it has."""
    tokenizer = getattr(processing_class, "tokenizer", processing_class)
    config = model.config.get_text_config()
    generation = getattr(model, "generation_config", None)
    for name in ("eos_token_id", "bos_token_id", "pad_token_id"):
        token = getattr(tokenizer, name, None)
        if token is None:
            continue
        own, generated = getattr(config, name, None), getattr(generation, name, None)
        if token in _several(own) and (generation is None or token in _several(generated)):
            continue
        adds = name == "eos_token_id"
        setattr(config, name, _with(token, own) if adds and isinstance(own, list) else token)
        if generation is not None:
            setattr(generation, name, _with(token, generated) if adds else token)


def _several(given: Any) -> list[Any]:
    return given if isinstance(given, list) else [given]


def _with(token: int, given: Any) -> list[int]:
    return [token, *(other for other in _several(given) if other not in (None, token))]
