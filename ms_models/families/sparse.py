"""What decoders with a mixture of experts in place of the feed-forward layer have in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mappings.errors import UserError
from ms_models.families.config import DecoderConfig
from ms_models.families.sharding import Sharding
from ms_models.layers.moe import Experts, MoE
from ms_models.layers.moe_router import SoftmaxRouter


@dataclass(frozen=True)
class SparseConfig(DecoderConfig):
    """Shape and settings of a decoder with experts."""

    experts: int = 0
    """Number of experts of a layer."""
    experts_per_token: int = 0
    expert_size: int = 0
    """Width of an expert's hidden layer."""
    renormalise: bool = True
    """Whether the weights of a token's experts are divided by their sum."""
    has_experts: tuple[bool, ...] = ()
    """For each decoder layer, whether its feed-forward is a mixture of experts."""


class SparseMLP(MoE):
    """A softmax router and its experts.

    | tensor | tensor parallel | expert parallel |
    |---|---|---|
    | gate.weight | on every rank | on every rank |
    | experts.gate_up_proj | rows of gate and of up | consecutive experts |
    | experts.down_proj | columns; results summed | consecutive experts |
    """

    def __init__(self, config: SparseConfig, sharding: Sharding, layer: int) -> None:
        logits = sharding.replicated(config.hidden_size, config.experts)
        experts = Experts(
            config.experts,
            config.hidden_size,
            config.expert_size,
            tp=sharding.group,
            ep=sharding.place.mesh.group("ep"),
            enter=sharding.enter(),
            leave=sharding.leave(),
        )
        super().__init__(SoftmaxRouter(logits, config.experts_per_token, renormalise=config.renormalise), experts)


def experts_per_token(raw: Mapping[str, Any], default: int, experts: int) -> int:
    """`num_experts_per_tok` of `config.json`.

    Raises:
        UserError: it is no whole number between 1 and the number of experts.
    """
    value = raw.get("num_experts_per_tok", default)
    if type(value) is not int or not 1 <= value <= experts:
        raise UserError(
            f"config.json: num_experts_per_tok must be a whole number from 1 to the {experts} experts, found {value!r}"
        )
    return value


def refuse_balancing_loss(raw: Mapping[str, Any]) -> None:
    """Refuses the load-balancing loss, which transformers adds where `output_router_logits` is true, else never.

    Raises:
        UserError: it is switched on.
    """
    if raw.get("output_router_logits"):
        raise UserError(
            "config.json: output_router_logits is true, which adds a load-balancing loss that is not supported; "
            "set it to false"
        )
