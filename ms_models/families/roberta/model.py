"""RoBERTa: BERT with positions that skip padding, and a head of other names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

from mappings.errors import UserError
from mappings.families import Family
from ms_models.families.bert.model import BertEmbeddings, BertModel
from ms_models.families.encoder_config import EncoderConfig
from ms_models.families.masked_lm import MaskedLM
from ms_models.families.roberta.sharding import RobertaSharding
from ms_models.layers.activation import gelu
from ms_models.parallel.linear import like
from ms_models.parallel.place import Place


class RobertaEmbeddings(BertEmbeddings):
    """Positions begin behind the padding token's id, which is also the position of padding, whose row learns nothing.

    A sequence may be as long as `max_position_embeddings - pad_token_id - 1`, padding included.
    """

    def __init__(self, config: EncoderConfig, sharding: RobertaSharding) -> None:
        super().__init__(config, sharding)
        assert config.pad_token_id is not None, "read_config refuses this"
        self.pad = config.pad_token_id
        self.own = sharding.own

    def count(self, ids: Tensor) -> Tensor:
        """Positions of tokens, `[B, S]`: pad + 1, pad + 2 ... over what is no padding token."""
        if ids.shape[1] + self.pad + 1 > self.positions:
            raise ValueError("input_ids are longer than max_position_embeddings - pad_token_id - 1 of config.json")
        token = (ids != self.pad).astype(ms.int32)
        return ops.cumsum(token, 1) * token + self.pad

    def position_rows(self, positions: Tensor) -> Tensor:
        """Rows of the position table."""
        rows = super().position_rows(positions)
        return ops.where((self.own(positions) != self.pad).expand_dims(-1), rows, ops.stop_gradient(rows))


class RobertaModel(BertModel):
    """Embeddings and encoder; the pooler where the checkpoint has one."""

    embeddings_class = RobertaEmbeddings


class RobertaLMHead(nn.Cell):
    """The head: dense, GELU whatever the layers have, norm, decoder, bias.

    An untied decoder has a bias of its own and leaves the other one unused.
    """

    def __init__(self, config: EncoderConfig, sharding: RobertaSharding) -> None:
        super().__init__()
        hidden, tied = config.hidden_size, config.tie_word_embeddings
        self.dense = sharding.replicated(hidden, hidden, bias=True)
        self.layer_norm = sharding.layer_norm(hidden, config.layer_norm_eps)
        self.enter = sharding.enter()
        rows = ops.zeros((sharding.place.vocab_rows,), ms.float32)
        self.bias = Parameter(rows, name="bias", requires_grad=tied)
        self.decoder = None if tied else sharding.lm_head(hidden, bias=True)

    def construct(self, x_BSM: Tensor, table_VM: Tensor) -> Tensor:
        x_BSM = self.enter(self.layer_norm(gelu(self.dense(x_BSM))))
        if self.decoder is not None:
            return self.decoder(x_BSM)
        return ops.dense(x_BSM, like(table_VM, x_BSM), like(self.bias, x_BSM))


class RobertaForMaskedLM(MaskedLM):
    """RoBERTa with its head of masked words; see `MaskedLM` for what it offers.

    The pooler of a checkpoint that has one is kept as it is.
    """

    sharding = RobertaSharding

    def __init__(self, config: EncoderConfig, place: Place) -> None:
        super().__init__(config, place)
        sharding = self.sharding(place)
        self.roberta = RobertaModel(config, sharding, pooler="pooler" in place.optional)
        self.lm_head = RobertaLMHead(config, sharding)
        self.check_parameters()

    @staticmethod
    def read_config(raw: Mapping[str, Any], family: Family) -> EncoderConfig:
        """Typed settings from the contents of `config.json`.

        Raises:
            UserError: as `EncoderConfig.read`, or there is no padding token, from which positions are counted.
        """
        config = EncoderConfig.read(raw, family, pad_token_id=1)
        if config.pad_token_id is None:
            raise UserError("config.json: pad_token_id is null, but positions are counted from it")
        return config

    def encode(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
    ) -> Tensor:
        return self.roberta(input_ids, attention_mask, token_type_ids, position_ids)

    def head(self, x_BSM: Tensor) -> Tensor:
        return self.lm_head(x_BSM, self.roberta.embeddings.word_embeddings.weight)
