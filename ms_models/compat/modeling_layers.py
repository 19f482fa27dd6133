"""Layers and heads that transformers' model files share."""

from __future__ import annotations

import sys
from functools import wraps
from typing import Any

import mindspore as ms
from mindspore import Tensor, nn, ops

from .forward_decorators import can_return_tuple, past_key_values_as_cache
from .layers import Dropout, Linear
from .model_outputs import (
    QuestionAnsweringModelOutput,
    SequenceClassifierOutputWithPast,
    TokenClassifierOutput,
)
from .module import Module


class GradientCheckpointingLayer(Module):
    """A layer whose activations may be computed again; here they are kept, which changes no number.

    In training with checkpointing it fills no cache, as in transformers.
    """

    gradient_checkpointing = False
    _can_checkpoint_with_cache = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        construct = cls.construct

        @wraps(construct)
        def checkpointed(self: Any, *args: Any, **kwargs: Any) -> Any:
            if self.gradient_checkpointing and self.training and type(self).construct is checkpointed:
                kwargs.update({"use_cache": False} if kwargs.get("use_cache") else {})
                if not self._can_checkpoint_with_cache:
                    kwargs.update({name: None for name in ("cache", "layer_past") if kwargs.get(name) is not None})
            return construct(self, *args, **kwargs)

        cls.construct = checkpointed


def base_model_of(head: Any, config: Any) -> nn.Cell:
    """The model below a head: the class in the head's file that is named after the configuration, `LlamaModel`.

    Raises:
        NotImplementedError: the file has no such class.
    """
    name = f"{type(config).__name__.removesuffix('Config')}Model"
    for kind in type(head).__mro__:
        if found := getattr(sys.modules[kind.__module__], name, None):
            return found(config)
    raise NotImplementedError(f"{type(head).__module__} has no class {name} for the head {type(head).__name__}")


class GenericForSequenceClassification:
    """One class for a text, from its last token that is no padding."""

    base_model_prefix = "model"

    def __init__(self, config: Any) -> None:
        super().__init__(config)  # type: ignore[call-arg]
        self.num_labels = config.num_labels
        setattr(self, self.base_model_prefix, base_model_of(self, config))
        self.score = Linear(config.get_text_config().hidden_size, self.num_labels, bias=False)
        self.post_init()  # type: ignore[attr-defined]

    @past_key_values_as_cache
    @can_return_tuple
    def construct(
        self: Any,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: Any = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        outputs = getattr(self, self.base_model_prefix)(
            input_ids, attention_mask=attention_mask, position_ids=position_ids, cache=cache,
            inputs_embeds=inputs_embeds, use_cache=use_cache, **kwargs,
        )  # fmt: skip
        logits = self.score(outputs.last_hidden_state)
        rows, length = logits.shape[:2]
        padding = self.config.get_text_config().pad_token_id
        if padding is None and rows != 1:
            raise ValueError("Cannot handle batch sizes > 1 if no padding token is defined.")
        last: Any = ops.full((rows,), length - 1, dtype=ms.int64)
        if padding is not None and input_ids is not None:
            last = (ops.arange(length) * (input_ids != padding).astype(ms.int64)).argmax(-1)
        pooled = logits[ops.arange(rows), last]
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, pooled_logits=pooled, config=self.config)
        return SequenceClassifierOutputWithPast(
            loss=loss, logits=pooled, cache=outputs.cache,
            hidden_states=outputs.hidden_states, attentions=outputs.attentions,
        )  # fmt: skip


class GenericForQuestionAnswering:
    """The two ends of an answer in a text."""

    base_model_prefix = "model"

    def __init__(self, config: Any) -> None:
        super().__init__(config)  # type: ignore[call-arg]
        setattr(self, self.base_model_prefix, base_model_of(self, config))
        self.qa_outputs = Linear(config.hidden_size, 2)
        self.post_init()  # type: ignore[attr-defined]

    def get_input_embeddings(self) -> Any:
        """Of the model below."""
        return getattr(self, self.base_model_prefix).embed_tokens

    def set_input_embeddings(self, value: Any) -> None:
        """Of the model below."""
        getattr(self, self.base_model_prefix).embed_tokens = value

    @past_key_values_as_cache
    @can_return_tuple
    def construct(
        self: Any,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: Any = None,
        inputs_embeds: Tensor | None = None,
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
        **kwargs: Any,
    ) -> Any:
        outputs = getattr(self, self.base_model_prefix)(
            input_ids, attention_mask=attention_mask, position_ids=position_ids, cache=cache,
            inputs_embeds=inputs_embeds, **kwargs,
        )  # fmt: skip
        logits = self.qa_outputs(outputs.last_hidden_state)
        start, end = logits[..., 0], logits[..., 1]
        loss = None
        if start_positions is not None and end_positions is not None:
            loss = self.loss_function(start, end, start_positions, end_positions, **kwargs)
        return QuestionAnsweringModelOutput(
            loss=loss, start_logits=start, end_logits=end,
            hidden_states=outputs.hidden_states, attentions=outputs.attentions,
        )  # fmt: skip


class GenericForTokenClassification:
    """A class for every token."""

    base_model_prefix = "model"

    def __init__(self, config: Any) -> None:
        super().__init__(config)  # type: ignore[call-arg]
        self.num_labels = config.num_labels
        setattr(self, self.base_model_prefix, base_model_of(self, config))
        rates = (getattr(config, name, None) for name in ("classifier_dropout", "hidden_dropout"))
        self.dropout = Dropout(next((rate for rate in rates if rate is not None), 0.1))
        bias = getattr(config, "token_classification_bias", True)
        self.score = Linear(config.get_text_config().hidden_size, config.num_labels, bias=bias)
        self.post_init()  # type: ignore[attr-defined]

    @past_key_values_as_cache
    @can_return_tuple
    def construct(
        self: Any,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: Any = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        outputs = getattr(self, self.base_model_prefix)(
            input_ids, attention_mask=attention_mask, position_ids=position_ids, cache=cache,
            inputs_embeds=inputs_embeds, use_cache=use_cache, **kwargs,
        )  # fmt: skip
        logits = self.score(self.dropout(outputs.last_hidden_state))
        loss = None if labels is None else self.loss_function(logits, labels, self.config)
        return TokenClassifierOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )
