"""DeepSeek-V3, R1 and Kimi-K2: a decoder with latent attention and experts, and layers that predict further tokens.

Shape suffixes: B batch, S positions, M model width.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mindspore import Parameter, Tensor, ops

from mappings.families import Family
from ms_models.families.causal_lm import CausalLM
from ms_models.families.decoder import Decoder
from ms_models.families.deepseek_v3 import further
from ms_models.families.deepseek_v3.config import DeepseekV3Config
from ms_models.families.deepseek_v3.layers import DeepseekV3DecoderLayer
from ms_models.families.deepseek_v3.sharding import DeepseekV3Sharding
from ms_models.families.sharding import Sharding

TABLE = "model.embed_tokens.weight"


class DeepseekV3Model(Decoder):
    """Embedding, decoder layers, final norm; on the last pipeline stage, behind them, the further-token layers."""

    layer_class = DeepseekV3DecoderLayer

    def __init__(self, config: DeepseekV3Config, sharding: Sharding) -> None:
        super().__init__(config, sharding)
        place = sharding.place
        if self.embed_tokens is None and TABLE in place.held:
            self.embed_tokens = self.make_embedding(config, sharding)  # further-token layers embed on the last stage
        wanted = config.further_tokens if place.is_last and further.GROUP in place.optional else 0
        self.further: tuple[int, ...] = ()
        """For each further-token layer, its chunk."""
        for number in range(config.num_hidden_layers, config.num_hidden_layers + wanted):
            # In a chunk of its own, so that `through` runs it alone.
            position = len(self.layers)
            self.further += (len(self.chunks),)
            self.chunks += ((position, position + 1),)
            self.window_of_layer += (0,)
            self.layers.append(further.FurtherTokenLayer(config, sharding, number))
            self.numbers += (number,)


class DeepseekV3ForCausalLM(CausalLM):
    """DeepSeek-V3 with its output head; see `CausalLM` for what it offers.

    Attributes:
        further_weight: of the further-token losses, averaged over their layers, beside that of the next token; 0
            leaves the layers out. DeepSeek-V3 took 0.3 for the first two thirds of pretraining, then 0.1.
    """

    spelling = "hf_fused"
    sharding = DeepseekV3Sharding
    model_class = DeepseekV3Model
    further_weight: float = 0.1

    @staticmethod
    def read_config(raw: Mapping[str, Any], family: Family) -> DeepseekV3Config:
        """Typed settings from the contents of `config.json`."""
        return DeepseekV3Config.read(raw, family)

    def parameters_of(self, chunk: int) -> list[Parameter]:
        """See `CausalLM.parameters_of`; further-token layers follow the last chunk."""
        own = super().parameters_of(chunk)
        if self.is_last and chunk == self.last_chunk:
            layers = list(self.body.layers)
            first = self.body.chunks[chunk][1]
            own += [parameter for layer in layers[first:] for parameter in layer.trainable_params()]
        return own

    def total_loss(
        self, x_BSM: Tensor, input_ids: Tensor, labels: Tensor, attention_mask: Tensor | None = None
    ) -> Tensor:
        """The summed loss of the next token, and by their weight those of further tokens."""
        total = super().total_loss(x_BSM, input_ids, labels, attention_mask)
        count = len(self.body.further)
        if not count or not self.further_weight:
            return total
        return total + self.further_losses(x_BSM, input_ids, labels, attention_mask) * (self.further_weight / count)

    def further_losses(
        self, x_BSM: Tensor, input_ids: Tensor, labels: Tensor, attention_mask: Tensor | None = None
    ) -> Tensor:
        """Cross-entropy of the further tokens, summed over valid positions and layers.

        Args:
            x_BSM: what the last decoder layer gave.
            input_ids: `[B, S]`.
            labels: `[B, S]`, at the positions of the inputs.
            attention_mask: `[B, S]`, 0 for padding; None for none.
        """
        hidden = self.body.finish(x_BSM)
        total = 0.0
        for steps, chunk in enumerate(self.body.further, 1):
            # Positions whose token lies past the end are the last ones and have no label: nothing sees what fills them.
            embedded = self.body.embed(further.ahead(input_ids, steps, 0))
            both = ops.concat((embedded, hidden), -1)
            hidden = self.body.through(both, chunk, input_ids.shape[1], attention_mask)[0]
            ahead = further.ahead(labels, steps)
            if attention_mask is not None:
                ahead = further.in_same_document(ahead, attention_mask, steps)
            targets = self.targets(ahead)
            losses = self.cross_entropy(self.head(hidden).reshape(-1, self.vocab_rows), targets.reshape(-1))
            total = total + losses.sum()
        return total
