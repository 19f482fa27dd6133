"""BERT as native MindSpore cells, and what RoBERTa shares with it. `sharding.py` decides what a rank holds.

Norms come after the residual sums (post-norm). Chinese RoBERTa checkpoints (`chinese-roberta-wwm-ext`) are BERTs.

Shape suffixes: B batch, S positions, H this rank's heads, D head width, M model width, V this rank's vocabulary rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

from mappings.families import Family
from ms_models.families.bert.sharding import BertSharding
from ms_models.families.encoder_config import EncoderConfig
from ms_models.families.masked_lm import MaskedLM
from ms_models.layers.dropout import sample_seeds
from ms_models.layers.encoder_attention import encoder_attention, padding_bias
from ms_models.parallel.linear import like
from ms_models.parallel.place import Place

SITES = 3  # places in a layer that drop values


class BertEmbeddings(nn.Cell):
    """Word, position and segment rows, summed and normed."""

    def __init__(self, config: EncoderConfig, sharding: BertSharding) -> None:
        super().__init__()
        hidden = config.hidden_size
        self.positions, self.segments = config.max_position_embeddings, config.type_vocab_size
        self.word_embeddings = sharding.embedding(hidden, config.pad_token_id)
        self.position_embeddings = sharding.position_table(self.positions, hidden)
        self.token_type_embeddings = sharding.position_table(self.segments, hidden)
        self.LayerNorm = sharding.layer_norm(hidden, config.layer_norm_eps)
        self.dropout = sharding.dropout(config.hidden_dropout, 0)

    def construct(self, ids: Tensor, segments: Tensor | None, positions: Tensor | None, seeds: Tensor) -> Tensor:
        if segments is None:
            segments = ops.zeros((1, ids.shape[1]), ms.int32)
        if positions is None:
            positions = self.count(ids)
        x_BSM = self.word_embeddings(ids) + look_up(self.token_type_embeddings, segments, self.segments)
        x_BSM = x_BSM + self.position_rows(positions)
        return self.dropout(self.LayerNorm(x_BSM), seeds)

    def count(self, ids: Tensor) -> Tensor:
        """Positions of tokens, `[1, S]`: 0, 1, 2 ..."""
        if ids.shape[1] > self.positions:
            raise ValueError("input_ids are longer than max_position_embeddings of config.json")
        return ops.arange(ids.shape[1]).expand_dims(0)

    def position_rows(self, positions: Tensor) -> Tensor:
        """Rows of the position table."""
        return look_up(self.position_embeddings, positions, self.positions)


def look_up(table: nn.Cell, ids: Tensor, count: int) -> Tensor:
    """Rows `ids` of a table of `count`; NaN everywhere if one is outside, which devices disagree about."""
    known = ops.logical_and(ids >= 0, ids < count)
    return ops.where(known.all(), table(ops.where(known, ids, 0)), float("nan"))


class BertSelfAttention(nn.Cell):
    """Every token looks at every token."""

    def __init__(self, config: EncoderConfig, sharding: BertSharding, layer: int) -> None:
        super().__init__()
        hidden, heads = config.hidden_size, config.num_attention_heads
        self.heads, self.width = sharding.local(heads), config.head_dim
        self.enter = sharding.enter()
        self.query = sharding.attention_in(hidden, heads * self.width, bias=True)
        self.key = sharding.attention_in(hidden, heads * self.width, bias=True)
        self.value = sharding.attention_in(hidden, heads * self.width, bias=True)
        self.dropout = sharding.head_dropout(config.attention_dropout, 1 + SITES * layer)

    def construct(self, x_BSM: Tensor, bias: Tensor | None, seeds: Tensor) -> Tensor:
        x_BSM = self.enter(x_BSM)
        shape = (x_BSM.shape[0], x_BSM.shape[1], self.heads, self.width)
        q_BSHD = self.query(x_BSM).reshape(shape)
        k_BSHD = self.key(x_BSM).reshape(shape)
        v_BSHD = self.value(x_BSM).reshape(shape)
        return encoder_attention(q_BSHD, k_BSHD, v_BSHD, bias, self.dropout, seeds)


class BertOutput(nn.Cell):
    """The end of a branch: projection, sum with what the branch began from, norm."""

    def __init__(self, dense: nn.Cell, config: EncoderConfig, sharding: BertSharding, site: int) -> None:
        super().__init__()
        self.dense = dense
        self.LayerNorm = sharding.layer_norm(config.hidden_size, config.layer_norm_eps)
        self.dropout = sharding.dropout(config.hidden_dropout, site)

    def construct(self, y: Tensor, x_BSM: Tensor, seeds: Tensor) -> Tensor:
        return self.LayerNorm(self.dropout(self.dense(y), seeds) + x_BSM)


class BertAttention(nn.Cell):
    """Attention and the end of its branch."""

    def __init__(self, config: EncoderConfig, sharding: BertSharding, layer: int) -> None:
        super().__init__()
        hidden = config.hidden_size
        self.self = BertSelfAttention(config, sharding, layer)
        dense = sharding.attention_out(hidden, hidden, bias=True)
        self.output = BertOutput(dense, config, sharding, 2 + SITES * layer)

    def construct(self, x_BSM: Tensor, bias: Tensor | None, seeds: Tensor) -> Tensor:
        return self.output(self.self(x_BSM, bias, seeds), x_BSM, seeds)


class BertIntermediate(nn.Cell):
    """The wide half of the feed-forward."""

    def __init__(self, config: EncoderConfig, sharding: BertSharding) -> None:
        super().__init__()
        self.enter = sharding.enter()
        self.dense = sharding.ffn_in(config.hidden_size, config.intermediate_size, bias=True)
        self.activation = config.activation

    def construct(self, x_BSM: Tensor) -> Tensor:
        return self.activation(self.dense(self.enter(x_BSM)))


class BertLayer(nn.Cell):
    """Attention, then feed-forward, each followed by a norm."""

    def __init__(self, config: EncoderConfig, sharding: BertSharding, layer: int) -> None:
        super().__init__()
        self.attention = BertAttention(config, sharding, layer)
        self.intermediate = BertIntermediate(config, sharding)
        dense = sharding.ffn_out(config.intermediate_size, config.hidden_size, bias=True)
        self.output = BertOutput(dense, config, sharding, 3 + SITES * layer)

    def construct(self, x_BSM: Tensor, bias: Tensor | None, seeds: Tensor) -> Tensor:
        x_BSM = self.attention(x_BSM, bias, seeds)
        return self.output(self.intermediate(x_BSM), x_BSM, seeds)


class BertEncoder(nn.Cell):
    """The layers."""

    def __init__(self, config: EncoderConfig, sharding: BertSharding) -> None:
        super().__init__()
        self.layer = nn.CellList([BertLayer(config, sharding, i) for i in range(config.num_hidden_layers)])

    def construct(self, x_BSM: Tensor, bias: Tensor | None, seeds: Tensor) -> Tensor:
        for layer in self.layer:
            x_BSM = layer(x_BSM, bias, seeds)
        return x_BSM


class Kept(nn.Cell):
    """A linear layer that masked-language training does not use: it is loaded and saved, and never changes."""

    def __init__(self, dense: nn.Cell) -> None:
        super().__init__()
        self.dense = freeze(dense)


def freeze(cell: nn.Cell) -> nn.Cell:
    """Keeps the parameters of a cell out of training."""
    for parameter in cell.get_parameters():
        parameter.requires_grad = False
    return cell


class BertModel(nn.Cell):
    """Embeddings and encoder; the pooler where the checkpoint has one."""

    embeddings_class: type[BertEmbeddings] = BertEmbeddings

    def __init__(self, config: EncoderConfig, sharding: BertSharding, *, pooler: bool) -> None:
        super().__init__()
        self.embeddings = self.embeddings_class(config, sharding)
        self.encoder = BertEncoder(config, sharding)
        hidden = config.hidden_size
        self.pooler = Kept(sharding.replicated(hidden, hidden, bias=True)) if pooler else None

    def construct(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
    ) -> Tensor:
        """Hidden states `[B, S, M]`; see `MaskedLM` for the arguments."""
        seeds = sample_seeds(input_ids)
        bias = None if attention_mask is None else padding_bias(attention_mask)
        return self.encoder(self.embeddings(input_ids, token_type_ids, position_ids, seeds), bias, seeds)


class BertTransform(nn.Cell):
    """What hidden states pass before they are compared with the vocabulary."""

    def __init__(self, config: EncoderConfig, sharding: BertSharding) -> None:
        super().__init__()
        self.dense = sharding.replicated(config.hidden_size, config.hidden_size, bias=True)
        self.activation = config.activation
        self.LayerNorm = sharding.layer_norm(config.hidden_size, config.layer_norm_eps)

    def construct(self, x_BSM: Tensor) -> Tensor:
        return self.LayerNorm(self.activation(self.dense(x_BSM)))


class BertPredictions(nn.Cell):
    """The head: transform, decoder, bias. An untied decoder has a bias of its own and leaves the other one unused."""

    def __init__(self, config: EncoderConfig, sharding: BertSharding) -> None:
        super().__init__()
        self.transform = BertTransform(config, sharding)
        self.enter = sharding.enter()
        tied = config.tie_word_embeddings
        rows = ops.zeros((sharding.place.vocab_rows,), ms.float32)
        self.bias = Parameter(rows, name="bias", requires_grad=tied)
        self.decoder = None if tied else sharding.lm_head(config.hidden_size, bias=True)

    def construct(self, x_BSM: Tensor, table_VM: Tensor) -> Tensor:
        x_BSM = self.enter(self.transform(x_BSM))
        if self.decoder is not None:
            return self.decoder(x_BSM)
        return ops.dense(x_BSM, like(table_VM, x_BSM), like(self.bias, x_BSM))


class BertHeads(nn.Cell):
    """The head of masked words; that of the next sentence where the checkpoint has one."""

    def __init__(self, config: EncoderConfig, sharding: BertSharding, *, next_sentence: bool) -> None:
        super().__init__()
        self.predictions = BertPredictions(config, sharding)
        self.seq_relationship = freeze(sharding.replicated(config.hidden_size, 2, bias=True)) if next_sentence else None


class BertForMaskedLM(MaskedLM):
    """BERT with its head of masked words; see `MaskedLM` for what it offers.

    Pooler and next-sentence head of a `BertForPreTraining` checkpoint are kept as they are.
    """

    sharding = BertSharding

    def __init__(self, config: EncoderConfig, place: Place) -> None:
        super().__init__(config, place)
        sharding = self.sharding(place)
        self.bert = BertModel(config, sharding, pooler="pooler" in place.optional)
        self.cls = BertHeads(config, sharding, next_sentence="next_sentence" in place.optional)
        self.check_parameters()

    @staticmethod
    def read_config(raw: Mapping[str, Any], family: Family) -> EncoderConfig:
        """Typed settings from the contents of `config.json`."""
        return EncoderConfig.read(raw, family, pad_token_id=0)

    def encode(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
    ) -> Tensor:
        return self.bert(input_ids, attention_mask, token_type_ids, position_ids)

    def head(self, x_BSM: Tensor) -> Tensor:
        return self.cls.predictions(x_BSM, self.bert.embeddings.word_embeddings.weight)
