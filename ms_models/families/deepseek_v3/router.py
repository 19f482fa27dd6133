"""DeepSeek-V3's router: sigmoid scores, a correction that only selects, and a limit on groups of experts.

Shape suffixes: E experts, G groups, k chosen experts; `...` are the axes of the tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from mappings.errors import UserError
from ms_models.families.config import positive, switch
from ms_models.layers.moe_router import best, pick, shares

LOWEST = float(np.finfo(np.float32).min)
BEST = 2  # a group is judged by the sum of its two best experts


@dataclass(frozen=True)
class RouterConfig:
    """How many experts a token gets, from where, and with which weights."""

    experts: int
    chosen: int
    """Experts per token."""
    groups: int
    """Equal runs of consecutive experts."""
    chosen_groups: int
    """Groups that a token's experts may come from."""
    normalized: bool
    """Whether the weights of a token's experts add up to 1 before they are scaled."""
    scale: float
    """Of the weights."""

    @classmethod
    def read(cls, raw: Mapping[str, Any], experts: int) -> RouterConfig:
        """Settings from the contents of `config.json`.

        Raises:
            UserError: a field is odd, or numbers of experts do not fit each other.
        """
        chosen = _count(raw, "num_experts_per_tok", 8)
        groups, chosen_groups = _count(raw, "n_group", 8), _count(raw, "topk_group", 4)
        if experts % groups or experts // groups < BEST:
            raise UserError(
                f"config.json: n_group={groups} must divide n_routed_experts={experts} into groups of at least {BEST}"
            )
        if chosen_groups > groups:
            raise UserError(f"config.json: topk_group={chosen_groups} exceeds n_group={groups}")
        if chosen > experts // groups * chosen_groups:
            raise UserError(
                f"config.json: num_experts_per_tok={chosen} exceeds the {experts // groups * chosen_groups} experts "
                f"of topk_group={chosen_groups} groups"
            )
        scale = positive(raw, "routed_scaling_factor", 2.5)
        return cls(experts, chosen, groups, chosen_groups, switch(raw, "norm_topk_prob", True), scale)


def _count(raw: Mapping[str, Any], field: str, default: int) -> int:
    value = raw.get(field, default)
    if type(value) is not int or value < 1:
        raise UserError(f"config.json: {field} must be a positive whole number, found {value!r}")
    return value


class DeepseekV3Router(nn.Cell):
    """Chooses the experts of each token; see `moe_router` for what routers have in common.

    The correction bias has no gradient. Pretraining moved it by each expert's load after every step (DeepSeek-V3,
    2024, section 2.1.2); nothing here does, it stays as it was loaded.

    Args:
        config: see `RouterConfig`.
        logits: a linear layer without bias from the model's width to the number of experts.
    """

    def __init__(self, config: RouterConfig, logits: nn.Cell) -> None:
        super().__init__()
        self.config = config
        self.weight = logits.weight  # named where it is met first: `gate.weight`, not `gate.logits.weight`
        self.logits = logits
        correction = ops.zeros((config.experts,), ms.float32)
        self.e_score_correction_bias = Parameter(correction, name="e_score_correction_bias", requires_grad=False)

    def construct(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Weights `[..., k]` fp32 of each token's experts, and their indices `[..., k]`."""
        scores = ops.sigmoid(self.logits(x.astype(ms.float32)))
        chosen = self.choose(ops.stop_gradient(scores))
        weights = pick(scores, chosen)
        return (shares(weights) if self.config.normalized else weights) * self.config.scale, chosen

    def choose(self, scores: Tensor) -> Tensor:
        """Indices `[..., k]` of the best experts within the best groups, by corrected score."""
        config = self.config
        corrected = scores + self.e_score_correction_bias
        if config.chosen_groups < config.groups:
            corrected_GE = corrected.reshape(*scores.shape[:-1], config.groups, -1)
            merit_G = ops.topk(corrected_GE, BEST)[0].sum(-1)
            allowed = best(merit_G, config.chosen_groups).expand_dims(-1) == ops.arange(config.groups)
            corrected = ops.where(allowed.any(-2).expand_dims(-1), corrected_GE, LOWEST).reshape(scores.shape)
        return best(corrected, config.chosen)
