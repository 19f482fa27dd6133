"""`GenerationConfig`: how `generate` chooses tokens; what is not said is None and takes the next place's value."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

FILE = "generation_config.json"
DEFAULTS: Mapping[str, Any] = {
    "max_length": 20,
    "min_length": 0,
    "do_sample": False,
    "use_cache": True,
    "early_stopping": False,
    "num_beams": 1,
    "temperature": 1.0,
    "top_k": 50,
    "top_p": 1.0,
    "typical_p": 1.0,
    "repetition_penalty": 1.0,
    "length_penalty": 1.0,
    "no_repeat_ngram_size": 0,
    "num_return_sequences": 1,
    "output_scores": False,
    "output_logits": False,
    "return_dict_in_generate": False,
    "remove_invalid_values": False,
    "epsilon_cutoff": 0.0,
}
"""What holds where neither the call nor the model says anything."""
OPTIONS = (
    "max_new_tokens", "min_new_tokens", "max_time", "stop_strings", "min_p", "bad_words_ids", "renormalize_logits",
    "forced_bos_token_id", "forced_eos_token_id", "suppress_tokens", "begin_suppress_tokens", "output_attentions",
    "output_hidden_states", "pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id",
    "transformers_version",
)  # fmt: skip
"""Further options, which are None unless given."""
UNSUPPORTED: Mapping[str, Any] = {
    "assistant_early_exit": None,
    "cache_config": None,
    "cache_implementation": "dynamic",
    "constraints": None,
    "diversity_penalty": 0.0,
    "dola_layers": None,
    "encoder_no_repeat_ngram_size": 0,
    "encoder_repetition_penalty": 1.0,
    "eta_cutoff": 0.0,
    "exponential_decay_length_penalty": None,
    "force_words_ids": None,
    "guidance_scale": 1,
    "low_memory": None,
    "num_beam_groups": 1,
    "penalty_alpha": None,
    "prefill_chunk_size": None,
    "prompt_lookup_num_tokens": None,
    "sequence_bias": None,
    "token_healing": False,
    "top_h": None,
    "use_mtp": None,
    "watermarking_config": None,
}
"""Options of transformers that are refused, unless they have the value that changes nothing."""


class GenerationConfig:
    """Options of `generate` as attributes, all None unless given."""

    _length_is_given = False
    """Whether somebody said `max_length`, for one call."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

        def __setattr__(self, name: str, value: Any) -> None: ...

    def __init__(self, **kwargs: Any) -> None:
        for name in (*DEFAULTS, *OPTIONS, *UNSUPPORTED):
            setattr(self, name, kwargs.pop(name, None))
        for name, value in kwargs.items():
            setattr(self, name, value)

    @classmethod
    def from_model_config(cls, model_config: Any) -> GenerationConfig:
        """The options that a model's configuration has, such as `eos_token_id`."""
        result, given = cls(), model_config.to_dict()
        inner = given.get("decoder") or given.get("generator") or given.get("text_config") or {}
        for source in (given, inner if isinstance(inner, dict) else {}):
            for name, value in source.items():
                if hasattr(result, name) and name != "transformers_version" and getattr(result, name) is None:
                    setattr(result, name, value)
        return result

    @classmethod
    def from_pretrained(cls, pretrained_model_name: Any, **kwargs: Any) -> GenerationConfig:
        """The options of the `generation_config.json` of a directory, changed by `kwargs`.

        Raises:
            OSError: there is no such file.
        """
        path = Path(pretrained_model_name) / FILE
        given = json.loads(path.read_text(encoding="utf-8"))
        return cls(**{name: value for name, value in given.items() if not name.startswith("_")} | kwargs)

    def save_pretrained(self, save_directory: Any, **kwargs: Any) -> None:
        """Write `generation_config.json`."""
        path = Path(save_directory) / FILE
        path.write_text(json.dumps(self.to_diff_dict(), indent=2, sort_keys=True) + "\n", encoding="utf-8")

    def to_dict(self) -> dict[str, Any]:
        """All options."""
        return {name: value for name, value in vars(self).items() if not name.startswith("_")}

    def to_diff_dict(self) -> dict[str, Any]:
        """The options that were given."""
        return {name: value for name, value in self.to_dict().items() if value is not None}

    def update(self, **kwargs: Any) -> dict[str, Any]:
        """Set options; what is none is returned."""
        for name in set(kwargs) & set(vars(self)):
            setattr(self, name, kwargs.pop(name))
        return kwargs

    def __repr__(self) -> str:
        return f"{type(self).__name__} {json.dumps(self.to_diff_dict(), indent=2, sort_keys=True, default=str)}"


def settled(model_config: Any, given: Any, kwargs: dict[str, Any]) -> tuple[GenerationConfig, dict[str, Any]]:
    """The options of one call, and the arguments that are none.

    Arguments go before `given`, that before the model's own options, these before the defaults. The configurations may
    also be those of transformers.

    Raises:
        ValueError: an option that is not done here has a value that means something.
    """
    result = GenerationConfig()
    for source in (given, model_config):
        for name, value in _options(source).items():
            if getattr(result, name, None) is None:
                setattr(result, name, value)
    rest = result.update(**kwargs)
    result._length_is_given = result.max_length is not None
    for name, value in DEFAULTS.items():
        if getattr(result, name) is None:
            setattr(result, name, value)
    for name, harmless in UNSUPPORTED.items():
        if getattr(result, name) not in (None, harmless):
            raise ValueError(f"generate({name}={getattr(result, name)!r}) is not done on MindSpore; leave it away")
    return result, rest


def _options(config: Any) -> dict[str, Any]:
    if config is None:
        return {}
    return {name: value for name, value in vars(config).items() if not name.startswith("_") and value is not None}
