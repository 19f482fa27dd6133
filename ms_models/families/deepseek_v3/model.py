"""DeepSeek-V3, R1 and Kimi-K2: latent attention, experts beside a shared feed-forward, further-token layers.

Shape suffixes: B batch, S positions, M model width, T tokens (positions of all rows), X experts of a token.
"""

from __future__ import annotations

from dataclasses import replace

from mindspore import Tensor, nn

from ms_models.families.deepseek_v3.config import DeepseekV3Config
from ms_models.families.deepseek_v3.router import DeepseekV3Router
from ms_models.families.llama.model import LlamaDecoderLayer, LlamaMLP
from ms_models.families.sharding import Sharding
from ms_models.layers.mla import LatentAttention
from ms_models.layers.moe import Experts

FURTHER = "mtp"
"""Group of the further-token layers' tensors in the family's facts."""


class DeepseekV3Attention(LatentAttention):
    """Latent attention of a decoder layer."""

    def __init__(self, config: DeepseekV3Config, sharding: Sharding, layer: int) -> None:
        super().__init__(config.attention, sharding)


class DeepseekV3MoE(nn.Cell):
    """The sum of a token's experts, by their weights, and of a feed-forward that every token passes."""

    def __init__(self, config: DeepseekV3Config, sharding: Sharding, layer: int) -> None:
        super().__init__()
        self.gate = DeepseekV3Router(config.router, config.hidden_size, sharding.shared_by)
        self.experts = Experts(config.router.experts, config.hidden_size, config.expert_size, sharding)
        shared = replace(config, intermediate_size=config.shared_size)
        self.shared_experts = LlamaMLP(shared, sharding, layer) if config.shared_size else None

    def construct(self, x_BSM: Tensor) -> Tensor:
        weights_TX, index_TX = self.gate(x_BSM.reshape(-1, x_BSM.shape[-1]))
        y_BSM = self.experts(x_BSM, weights_TX, index_TX)
        return y_BSM if self.shared_experts is None else y_BSM + self.shared_experts(x_BSM)


def feed_forward(config: DeepseekV3Config, sharding: Sharding, layer: int) -> nn.Cell:
    """Dense in the first layers, then experts."""
    kind = LlamaMLP if layer < config.first_moe_layer else DeepseekV3MoE
    return kind(config, sharding, layer)


class DeepseekV3DecoderLayer(LlamaDecoderLayer):
    """A Llama layer with latent attention, and experts from some layer on."""

    attention_class = DeepseekV3Attention
    mlp_class = staticmethod(feed_forward)  # type: ignore[assignment]
