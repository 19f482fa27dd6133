"""`Decoder`: embedding, the decoder layers of a rank, final norm; the same for every family.

Shape suffixes: B batch, S query positions, T key positions, M model width.
"""

from __future__ import annotations

from typing import Any

from mindspore import Tensor, nn, ops

from ms_models.families.config import DecoderConfig
from ms_models.families.sharding import Sharding
from ms_models.layers.attention import causal_bias, within_window
from ms_models.layers.rotary import Rotary
from ms_models.parallel.place import Place

Cache = tuple[tuple[Tensor, Tensor], ...]
"""Keys and values of every layer."""


class Decoder(nn.Cell):
    """The part of a decoder that a rank holds.

    A family sets `layer_class`, called with (config, sharding, index of the layer), and overrides `make_embedding` and
    `make_norm` where its own differ. A rank of a pipeline has some of the layers; only the first stage
    embeds and only the last one has the norm.
    """

    layer_class: type[Any]

    def __init__(self, config: DecoderConfig, sharding: Sharding) -> None:
        super().__init__()
        place = sharding.place
        holds_table = place.is_first or (place.is_last and config.tie_word_embeddings)
        self.embed_tokens: Any = self.make_embedding(config, sharding) if holds_table else None
        self.layers = nn.CellList([self.layer_class(config, sharding, index) for index in place.layers])
        self.numbers = tuple(place.layers)
        """Of `layers` within the whole model."""
        self.norm: Any = self.make_norm(config, sharding) if place.is_last else None
        self.rotary = Rotary(config.rope, config.head_dim) if config.rope is not None else None
        self.chunks = _places_of_chunks(place)
        self.context = place.context
        self.is_divided = place.context.group.size > 1
        windows = config.windows or (None,) * config.num_hidden_layers
        here = [windows[index] for index in place.layers]
        self.windows = tuple(dict.fromkeys(here))  # each once: layers with the same window share a bias
        self.window_of_layer = tuple(self.windows.index(window) for window in here)

    def make_embedding(self, config: Any, sharding: Sharding) -> nn.Cell:
        """Tokens to vectors."""
        return sharding.embedding(config.hidden_size, config.pad_token_id)

    def make_norm(self, config: Any, sharding: Sharding) -> nn.Cell:
        """The norm behind the last layer."""
        return sharding.norm(config.hidden_size, config.rms_norm_eps)

    def construct(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past: Cache | None = None,
    ) -> tuple[Tensor, Cache]:
        """Hidden states `[B, S, M]` and the keys and values of every layer, of a model that is whole on this rank.

        Args:
            input_ids: `[B, S]`.
            attention_mask: `[B, T]` over past and new positions, 0 for padding.
            position_ids: `[B, S]`; counted from the end of the past where not given.
            past: what an earlier call returned, to continue from it.
        """
        x_BSM = self.embed(input_ids)
        x_BSM, present = self.through(x_BSM, 0, input_ids.shape[1], attention_mask, position_ids, past)
        return self.finish(x_BSM), present

    def embed(self, input_ids: Tensor) -> Tensor:
        """Where the first stage begins: `[B, S, M]`, of a divided sequence this rank's part of S."""
        return self.embed_tokens(self.own(input_ids))

    def own(self, x: Tensor) -> Tensor:
        """This rank's positions of `x` `[B, S]`."""
        return self.context.local(x, 1) if self.is_divided else x

    def through(
        self,
        x_BSM: Tensor,
        chunk: int,
        length: int,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past: Cache | None = None,
    ) -> tuple[Tensor, Cache]:
        """The layers of one chunk of this stage, and their keys and values.

        Args:
            x_BSM: what the layers before gave.
            chunk: which of the chunks.
            length: of the whole sequences, of which `x_BSM` may be a part.
            attention_mask: see `construct`.
            position_ids: see `construct`.
            past: see `construct`; of the layers of this rank.
        """
        before = 0 if past is None else past[0][0].shape[1]
        if position_ids is None:
            position_ids = ops.arange(before, before + length).expand_dims(0)
        rotary = None if self.rotary is None else self.rotary(self.own(position_ids), position_ids)
        biases = self.biases(length, before, attention_mask)
        present: Cache = ()
        first, last = self.chunks[chunk]
        for index, layer in enumerate(self.layers):  # not by index: ms.jit then takes a cell for its class
            if first <= index < last:
                bias = biases[self.window_of_layer[index]]
                x_BSM, kv = layer(x_BSM, rotary, bias, None if past is None else past[index])
                present = present + (kv,)
        return x_BSM, present

    def biases(self, length: int, before: int, attention_mask: Tensor | None) -> list[Tensor]:
        """For each of `windows`, what is added to the scores of this rank's queries `[B, 1, S, T]`.

        Args:
            length: new positions of the whole sequence.
            before: positions of the past.
            attention_mask: see `construct`.
        """
        queries, positions = length, None
        if self.is_divided:
            positions = self.context.positions(length)
            queries = positions.shape[0]
        causal = causal_bias(queries, before + length, attention_mask, positions)
        return [causal if window is None else within_window(causal, window, positions) for window in self.windows]

    def finish(self, x_BSM: Tensor) -> Tensor:
        """Where the last stage ends: what the head reads."""
        return self.norm(x_BSM)


def _places_of_chunks(place: Place) -> tuple[tuple[int, int], ...]:
    """For each chunk, where its layers begin and end among the layers of the rank."""
    result, start = [], 0
    for chunk in place.chunks:
        result.append((start, start + len(chunk)))
        start += len(chunk)
    return tuple(result)
