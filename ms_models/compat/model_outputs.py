"""`ModelOutput` and the output classes of transformers: dataclasses, also dictionaries and tuples of what is not None.

What transformers 5 calls `cache` is reached by its older names, `past_key_values` and `cache_params`, as well.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import field, fields, make_dataclass
from typing import Any, NoReturn

from mindspore import Tensor

_OLD_NAMES = ("past_key_values", "cache_params")


class _TakesOldNames(type):
    """Wraps the `__init__` that `@dataclass` makes, so that it takes the older names of `cache`."""

    def __setattr__(cls, name: str, value: Any) -> None:
        super().__setattr__(name, _renaming(cls, value) if name == "__init__" else value)


def _renaming(cls: type, init: Callable[..., None]) -> Callable[..., None]:
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        for old in _OLD_NAMES:
            if old in kwargs and (new := _current(cls, old)) != old:
                if new in kwargs:
                    raise ValueError(f"{cls.__name__}: {new} and {old} are the same; give one of them")
                kwargs[new] = kwargs.pop(old)
        init(self, *args, **kwargs)

    return __init__


def _current(cls: type, name: str) -> str:
    """The name of a field by any of its names; a class may still have a field with an older one."""
    names = getattr(cls, "__dataclass_fields__", {})
    return "cache" if name in _OLD_NAMES and name not in names and "cache" in names else name


class ModelOutput(OrderedDict, metaclass=_TakesOldNames):
    """Base of dataclasses whose fields are also keys, and elements by position, unless they are None."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if type(self) is not ModelOutput:
            raise TypeError(f"{type(self).__name__} has to be a dataclass; decorate it with @dataclass")

    def __post_init__(self) -> None:
        declared = fields(self)  # type: ignore[arg-type]
        if not declared:
            raise ValueError(f"{type(self).__name__} has no fields.")
        if not all(one.default is None for one in declared[1:]):
            raise ValueError(f"{type(self).__name__} should not have more than one required field.")
        first, alone = declared[0].name, all(self.__dict__.get(one.name) is None for one in declared[1:])
        value = self.__dict__.get(first)
        if alone and (pairs := _pairs(value)) is not None:
            super().__setattr__(first, None)
            super().pop(first, None)
            for name, item in pairs:
                setattr(self, name, item)
            return
        for one in declared:
            if (item := self.__dict__.get(one.name)) is not None:
                self[one.name] = item

    def __getattr__(self, name: str) -> Any:
        if (current := _current(type(self), name)) != name:
            return getattr(self, current)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        name = _current(type(self), name)
        if value is not None and name in getattr(type(self), "__dataclass_fields__", {}):
            super().__setitem__(name, value)
        super().__setattr__(name, value)

    def __getitem__(self, key: Any) -> Any:
        """The value of a key, or by position (a number or a slice) among the values that are not None."""
        return super().__getitem__(_current(type(self), key)) if isinstance(key, str) else self.to_tuple()[key]

    def __setitem__(self, key: str, value: Any) -> None:
        key = _current(type(self), key)
        super().__setitem__(key, value)
        super().__setattr__(key, value)

    def __contains__(self, key: object) -> bool:
        return super().__contains__(_current(type(self), key) if isinstance(key, str) else key)

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a key, `default` where it is None."""
        return super().get(_current(type(self), key), default)

    def to_tuple(self) -> tuple[Any, ...]:
        """All values that are not None, in the order of the fields."""
        return tuple(self.values())

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), tuple(getattr(self, one.name) for one in fields(self))  # type: ignore[arg-type]

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError(f"the fields of a {type(self).__name__} cannot be removed or merged; assign to them")

    __delitem__ = setdefault = pop = update = _refuse


def _pairs(value: Any) -> list[tuple[str, Any]] | None:
    """A first field that is a dictionary, or pairs of name and value, gives all fields."""
    if isinstance(value, dict):
        return list(value.items())
    if value is None or isinstance(value, Tensor | str) or not hasattr(value, "__iter__"):
        return None
    items = list(value) if isinstance(value, list | tuple) else []
    pairs = [isinstance(item, list | tuple) and len(item) == 2 and isinstance(item[0], str) for item in items]
    if not items or not pairs[0]:
        return None
    if not all(pairs):
        raise ValueError(f"{items[pairs.index(False)]} is no pair of a name and a value")
    return [(name, item) for name, item in items]


def _output(name: str, names: str) -> Any:
    """A class of outputs with fields that are None unless given."""
    made = [(one, Any, field(default=None)) for one in names.split()]
    return make_dataclass(name, made, bases=(ModelOutput,), namespace={"__module__": __name__})


_STATES = "hidden_states attentions"
_BOTH = (
    "cache decoder_hidden_states decoder_attentions cross_attentions "
    "encoder_last_hidden_state encoder_hidden_states encoder_attentions"
)

BaseModelOutput = _output("BaseModelOutput", f"last_hidden_state {_STATES}")
BaseModelOutputWithNoAttention = _output("BaseModelOutputWithNoAttention", "last_hidden_state hidden_states")
BaseModelOutputWithPooling = _output("BaseModelOutputWithPooling", f"last_hidden_state pooler_output {_STATES}")
BaseModelOutputWithPast = _output("BaseModelOutputWithPast", f"last_hidden_state cache {_STATES}")
BaseModelOutputWithCrossAttentions = _output(
    "BaseModelOutputWithCrossAttentions", f"last_hidden_state {_STATES} cross_attentions"
)
BaseModelOutputWithPoolingAndCrossAttentions = _output(
    "BaseModelOutputWithPoolingAndCrossAttentions",
    "last_hidden_state pooler_output hidden_states cache attentions cross_attentions",
)
BaseModelOutputWithPastAndCrossAttentions = _output(
    "BaseModelOutputWithPastAndCrossAttentions", f"last_hidden_state cache {_STATES} cross_attentions"
)
MoEModelOutput = _output("MoEModelOutput", f"last_hidden_state {_STATES} router_probs router_logits")
MoeModelOutputWithPast = _output("MoeModelOutputWithPast", f"last_hidden_state cache {_STATES} router_logits")
MoeCausalLMOutputWithPast = _output("MoeCausalLMOutputWithPast", f"loss aux_loss logits cache {_STATES} router_logits")
MoECausalLMOutputWithPast = _output("MoECausalLMOutputWithPast", f"loss aux_loss logits cache {_STATES} router_logits")
Seq2SeqModelOutput = _output("Seq2SeqModelOutput", f"last_hidden_state {_BOTH}")
CausalLMOutput = _output("CausalLMOutput", f"loss logits {_STATES}")
CausalLMOutputWithPast = _output("CausalLMOutputWithPast", f"loss logits cache {_STATES}")
CausalLMOutputWithCrossAttentions = _output(
    "CausalLMOutputWithCrossAttentions", f"loss logits cache {_STATES} cross_attentions"
)
SequenceClassifierOutputWithPast = _output("SequenceClassifierOutputWithPast", f"loss logits cache {_STATES}")
MaskedLMOutput = _output("MaskedLMOutput", f"loss logits {_STATES}")
Seq2SeqLMOutput = _output("Seq2SeqLMOutput", f"loss logits {_BOTH}")
NextSentencePredictorOutput = _output("NextSentencePredictorOutput", f"loss logits {_STATES}")
SequenceClassifierOutput = _output("SequenceClassifierOutput", f"loss logits {_STATES}")
Seq2SeqSequenceClassifierOutput = _output("Seq2SeqSequenceClassifierOutput", f"loss logits {_BOTH}")
MultipleChoiceModelOutput = _output("MultipleChoiceModelOutput", f"loss logits {_STATES}")
TokenClassifierOutput = _output("TokenClassifierOutput", f"loss logits {_STATES}")
QuestionAnsweringModelOutput = _output("QuestionAnsweringModelOutput", f"loss start_logits end_logits {_STATES}")
Seq2SeqQuestionAnsweringModelOutput = _output(
    "Seq2SeqQuestionAnsweringModelOutput", f"loss start_logits end_logits {_BOTH}"
)
ImageClassifierOutput = _output("ImageClassifierOutput", f"loss logits {_STATES}")
_OF_MEDIA = "image_outputs video_outputs audio_outputs"
MultimodalBaseModelOutputWithPast = _output(
    "MultimodalBaseModelOutputWithPast", f"last_hidden_state cache {_STATES} {_OF_MEDIA}"
)
MultimodalCausalLMOutputWithPast = _output(
    "MultimodalCausalLMOutputWithPast", f"loss logits cache {_STATES} {_OF_MEDIA}"
)
# What `generate` returns with `return_dict_in_generate`.
GenerateDecoderOnlyOutput = _output(
    "GenerateDecoderOnlyOutput", "sequences scores logits attentions hidden_states cache"
)
_SEARCHED = "sequences sequences_scores scores logits beam_indices"
GenerateBeamDecoderOnlyOutput = _output("GenerateBeamDecoderOnlyOutput", f"{_SEARCHED} attentions hidden_states cache")
GenerateBeamEncoderDecoderOutput = _output(
    "GenerateBeamEncoderDecoderOutput",
    f"{_SEARCHED} encoder_attentions encoder_hidden_states decoder_attentions cross_attentions "
    "decoder_hidden_states cache",
)
GenerateEncoderDecoderOutput = _output(
    "GenerateEncoderDecoderOutput",
    "sequences scores logits encoder_attentions encoder_hidden_states decoder_attentions cross_attentions "
    "decoder_hidden_states cache",
)
