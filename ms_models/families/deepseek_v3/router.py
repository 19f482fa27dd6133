"""DeepSeek-V3's router: sigmoid scores, a correction that only selects, and a limit on groups of experts.

Shape suffixes: T tokens, M model width, E experts, G groups, X chosen experts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from mappings.errors import UserError
from ms_models.families.config import positive
from ms_models.parallel.collectives import CopyToGroup
from ms_models.parallel.mesh import Group

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
        normalized = raw.get("norm_topk_prob", True)
        if not isinstance(normalized, bool):
            raise UserError(f"config.json: norm_topk_prob must be a boolean, found {normalized!r}")
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
        return cls(experts, chosen, groups, chosen_groups, normalized, scale)


def _count(raw: Mapping[str, Any], field: str, default: int) -> int:
    value = raw.get(field, default)
    if type(value) is not int or value < 1:
        raise UserError(f"config.json: {field} must be a positive whole number, found {value!r}")
    return value


class DeepseekV3Router(nn.Cell):
    """Chooses the experts of each token.

    The correction bias has no gradient. Pretraining moved it by each expert's load after every step (DeepSeek-V3,
    2024, section 2.1.2); nothing here does, it stays as it was loaded.

    Args:
        config: see `RouterConfig`.
        hidden: width of a token.
        shared_by: ranks that hold the router and see different tokens of one sequence; its gradient is summed over
            them. None where every rank sees the same.
    """

    def __init__(self, config: RouterConfig, hidden: int, shared_by: Group | None = None) -> None:
        super().__init__()
        self.config = config
        self.weight = Parameter(ops.zeros((config.experts, hidden), ms.float32), name="weight")
        correction = ops.zeros((config.experts,), ms.float32)
        self.e_score_correction_bias = Parameter(correction, name="e_score_correction_bias", requires_grad=False)
        self.enter = CopyToGroup(shared_by) if shared_by is not None and shared_by.size > 1 else None

    def construct(self, x_TM: Tensor) -> tuple[Tensor, Tensor]:
        """Weights `[T, X]` fp32 of each token's experts, and their indices `[T, X]`."""
        weight = self.weight if self.enter is None else self.enter(self.weight)
        scores_TE = ops.sigmoid(ops.dense(x_TM.astype(ms.float32), weight))
        index_TX = self.choose(ops.stop_gradient(scores_TE))
        weights_TX = ops.gather_elements(scores_TE, 1, index_TX)
        if self.config.normalized:
            weights_TX = weights_TX / (weights_TX.sum(axis=-1, keepdims=True) + 1e-20)
        return weights_TX * self.config.scale, index_TX

    def choose(self, scores_TE: Tensor) -> Tensor:
        """Indices `[T, X]` of the best experts within the best groups, by corrected score."""
        config = self.config
        corrected_TE = scores_TE + self.e_score_correction_bias
        if config.chosen_groups < config.groups:
            grouped = corrected_TE.reshape(-1, config.groups, config.experts // config.groups)
            merit_TG = ops.topk(grouped, BEST)[0].sum(axis=-1)
            best = ops.topk(merit_TG, config.chosen_groups)[1]
            held_TG = (best.expand_dims(-1) == ops.arange(config.groups)).any(axis=1)
            corrected_TE = ops.where(held_TG.expand_dims(-1), grouped, LOWEST).reshape(-1, config.experts)
        return ops.topk(corrected_TE, config.chosen)[1]
