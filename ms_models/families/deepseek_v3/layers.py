"""DeepSeek-V3's decoder layer: latent attention, then a dense feed-forward or experts beside a shared one."""

from __future__ import annotations

from dataclasses import replace

from mindspore import Tensor, nn

from ms_models.families.deepseek_v3.config import DeepseekV3Config
from ms_models.families.deepseek_v3.router import DeepseekV3Router
from ms_models.families.llama.model import LlamaDecoderLayer, LlamaMLP
from ms_models.families.sharding import Sharding
from ms_models.layers.mla import LatentAttention
from ms_models.layers.moe import Experts


class DeepseekV3Attention(LatentAttention):
    """Latent attention of a decoder layer."""

    def __init__(self, config: DeepseekV3Config, sharding: Sharding, layer: int) -> None:
        super().__init__(config.attention, sharding)


class DeepseekV3MoE(nn.Cell):
    """The sum of a token's experts, by their weights, and of a feed-forward that every token passes."""

    def __init__(self, config: DeepseekV3Config, sharding: Sharding, layer: int) -> None:
        super().__init__()
        experts = config.router.experts
        self.gate = DeepseekV3Router(config.router, sharding.replicated(config.hidden_size, experts, bias=False))
        self.experts = Experts(
            experts,
            config.hidden_size,
            config.expert_size,
            tp=sharding.group,
            ep=sharding.place.mesh.group("ep"),
            enter=sharding.enter(),
            leave=sharding.leave(),
        )
        shared = replace(config, intermediate_size=config.shared_size)
        self.shared_experts = LlamaMLP(shared, sharding, layer) if config.shared_size else None

    def construct(self, x_BSM: Tensor) -> Tensor:
        weights_BSk, chosen_BSk = self.gate(x_BSM)
        y_BSM = self.experts(x_BSM, weights_BSk, chosen_BSk)
        return y_BSM if self.shared_experts is None else y_BSM + self.shared_experts(x_BSM)


def feed_forward(config: DeepseekV3Config, sharding: Sharding, layer: int) -> nn.Cell:
    """Dense in the first layers, experts in the others."""
    return (LlamaMLP if layer < config.first_moe_layer else DeepseekV3MoE)(config, sharding, layer)


class DeepseekV3DecoderLayer(LlamaDecoderLayer):
    """A Llama layer with latent attention, and experts from some layer on."""

    attention_class = DeepseekV3Attention
    mlp_class = staticmethod(feed_forward)  # type: ignore[assignment]
