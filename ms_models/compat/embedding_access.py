"""Embeddings, encoder and decoder of a model, where transformers looks for them."""

from __future__ import annotations

from typing import Any


class EmbeddingAccess:
    """`get_input_embeddings` and its like; a model with another layout overrides them."""

    _input_embed_layer = "embed_tokens"
    base_model: Any

    def _embedding_owner(self) -> Any:
        """The object that holds the embedding; None where another model has to be asked."""
        name = self._input_embed_layer
        for owner in (self, getattr(self, "embeddings", None), getattr(self, "model", None)):
            if owner is not None and getattr(owner, name, None) is not None:
                return owner
        return None

    def _inner_model(self, method: str) -> Any:
        """The model inside this one that knows its embeddings."""
        for inner in (getattr(self, "language_model", None), self.base_model):
            if inner is not None and inner is not self and hasattr(inner, method):
                return inner
        raise NotImplementedError(f"{type(self).__name__} has to define {method}; its embeddings were not found")

    def get_input_embeddings(self) -> Any:
        """The module that turns ids into vectors.

        Raises:
            NotImplementedError: it has another name than usual, and the class does not say which.
        """
        owner = self._embedding_owner()
        if owner is not None:
            return getattr(owner, self._input_embed_layer)
        return self._inner_model("get_input_embeddings").get_input_embeddings()

    def set_input_embeddings(self, value: Any) -> None:
        """Put another module in its place."""
        owner = self._embedding_owner()
        if owner is not None:
            setattr(owner, self._input_embed_layer, value)
        else:
            self._inner_model("set_input_embeddings").set_input_embeddings(value)

    def get_encoder(self) -> Any:
        """The encoder of an encoder-decoder model, else the model itself."""
        if hasattr(self, "encoder"):
            return self.encoder
        return self if self.base_model is self else self.base_model.get_encoder()

    def get_decoder(self) -> Any:
        """The decoder of an encoder-decoder model, else the model without its head."""
        for name in ("language_model", "text_model", "decoder"):
            if hasattr(self, name):
                return getattr(self, name)
        return getattr(self, "model", self) if self.base_model is self else self.base_model.get_decoder()

    def get_output_embeddings(self) -> Any:
        """The module that turns vectors into logits, None where there is none."""
        if not hasattr(self, "lm_head"):
            return None
        try:
            self.get_input_embeddings()
        except NotImplementedError:
            return None
        return self.lm_head

    def set_output_embeddings(self, new_embeddings: Any) -> None:
        """Put another module in its place."""
        self.lm_head = new_embeddings
