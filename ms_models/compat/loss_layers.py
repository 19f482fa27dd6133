"""Losses and distances as modules, with torch's buffers; their functions are in the files of losses."""

from __future__ import annotations

from collections.abc import Callable

from mindspore import Tensor

from . import distances, margin_losses, regression_losses
from .module import Module


class _Loss(Module):
    """A loss that is averaged, summed or given for each element."""

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__()
        self.reduction = reduction


class L1Loss(_Loss):
    """Absolute difference."""

    def construct(self, input: Tensor, target: Tensor) -> Tensor:
        return regression_losses.l1_loss(input, target, self.reduction)


class SmoothL1Loss(_Loss):
    """Squared difference below `beta`, absolute difference above."""

    def __init__(self, reduction: str = "mean", beta: float = 1.0) -> None:
        super().__init__(reduction)
        self.beta = beta

    def construct(self, input: Tensor, target: Tensor) -> Tensor:
        return regression_losses.smooth_l1_loss(input, target, self.reduction, self.beta)


class HuberLoss(_Loss):
    """`SmoothL1Loss` times `delta`."""

    def __init__(self, reduction: str = "mean", delta: float = 1.0) -> None:
        super().__init__(reduction)
        self.delta = delta

    def construct(self, input: Tensor, target: Tensor) -> Tensor:
        return regression_losses.huber_loss(input, target, self.reduction, self.delta)


class KLDivLoss(_Loss):
    """Kullback-Leibler divergence of log-probabilities from a target."""

    def __init__(self, reduction: str = "mean", log_target: bool = False) -> None:
        super().__init__(reduction)
        self.log_target = log_target

    def construct(self, input: Tensor, target: Tensor) -> Tensor:
        return regression_losses.kl_div(input, target, self.reduction, self.log_target)


class BCEWithLogitsLoss(_Loss):
    """Binary cross entropy of logits; `pos_weight` weighs the positive class."""

    def __init__(self, weight: Tensor | None = None, reduction: str = "mean", pos_weight: Tensor | None = None) -> None:
        super().__init__(reduction)
        self.register_buffer("weight", weight)
        self.register_buffer("pos_weight", pos_weight)

    def construct(self, input: Tensor, target: Tensor) -> Tensor:
        return regression_losses.binary_cross_entropy_with_logits(
            input, target, self.weight, self.pos_weight, self.reduction
        )


class PoissonNLLLoss(_Loss):
    """Negative log likelihood of Poisson counts."""

    def __init__(self, log_input: bool = True, full: bool = False, eps: float = 1e-8, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.log_input, self.full, self.eps = log_input, full, eps

    def construct(self, input: Tensor, target: Tensor) -> Tensor:
        settings = (self.log_input, self.full, self.eps, self.reduction)
        return regression_losses.poisson_nll_loss(input, target, *settings)


class GaussianNLLLoss(_Loss):
    """Negative log likelihood of normal numbers with mean `input` and variance `var`."""

    def __init__(self, full: bool = False, eps: float = 1e-6, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.full, self.eps = full, eps

    def construct(self, input: Tensor, target: Tensor, var: Tensor) -> Tensor:
        return regression_losses.gaussian_nll_loss(input, target, var, self.full, self.eps, self.reduction)


class SoftMarginLoss(_Loss):
    """`log(1 + exp(-target input))`."""

    def construct(self, input: Tensor, target: Tensor) -> Tensor:
        return margin_losses.soft_margin_loss(input, target, self.reduction)


class MultiLabelMarginLoss(_Loss):
    """Hinge loss of several labels; a target row ends at its first -1."""

    def construct(self, input: Tensor, target: Tensor) -> Tensor:
        return margin_losses.multilabel_margin_loss(input, target, self.reduction)


class HingeEmbeddingLoss(_Loss):
    """`x` where the target is 1, `max(0, margin - x)` where it is -1."""

    def __init__(self, margin: float = 1.0, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.margin = margin

    def construct(self, input: Tensor, target: Tensor) -> Tensor:
        return margin_losses.hinge_embedding_loss(input, target, self.margin, self.reduction)


class MarginRankingLoss(_Loss):
    """`max(0, -target (input1 - input2) + margin)`."""

    def __init__(self, margin: float = 0.0, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.margin = margin

    def construct(self, input1: Tensor, input2: Tensor, target: Tensor) -> Tensor:
        return margin_losses.margin_ranking_loss(input1, input2, target, self.margin, self.reduction)


class CosineEmbeddingLoss(MarginRankingLoss):
    """`1 - cos` where the target is 1, `max(0, cos - margin)` where it is -1."""

    def construct(self, input1: Tensor, input2: Tensor, target: Tensor) -> Tensor:
        return distances.cosine_embedding_loss(input1, input2, target, self.margin, self.reduction)


class MultiMarginLoss(_Loss):
    """Hinge loss of one label out of several."""

    def __init__(self, p: int = 1, margin: float = 1.0, weight: Tensor | None = None, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.register_buffer("weight", weight)
        self.p, self.margin = p, margin

    def construct(self, input: Tensor, target: Tensor) -> Tensor:
        return margin_losses.multi_margin_loss(input, target, self.p, self.margin, self.weight, self.reduction)


class MultiLabelSoftMarginLoss(_Loss):
    """Mean of binary cross entropies of logits over the classes."""

    def __init__(self, weight: Tensor | None = None, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.register_buffer("weight", weight)

    def construct(self, input: Tensor, target: Tensor) -> Tensor:
        return margin_losses.multilabel_soft_margin_loss(input, target, self.weight, self.reduction)


class TripletMarginLoss(_Loss):
    """`max(0, d(anchor, positive) - d(anchor, negative) + margin)`."""

    def __init__(
        self, margin: float = 1.0, p: float = 2.0, eps: float = 1e-6, swap: bool = False, reduction: str = "mean"
    ) -> None:
        super().__init__(reduction)
        self.margin, self.p, self.eps, self.swap = margin, p, eps, swap

    def construct(self, anchor: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        settings = (self.margin, self.p, self.eps, self.swap, self.reduction)
        return distances.triplet_margin_loss(anchor, positive, negative, *settings)


class TripletMarginWithDistanceLoss(_Loss):
    """`TripletMarginLoss` with a distance of one's own."""

    def __init__(
        self,
        distance_function: Callable[[Tensor, Tensor], Tensor] | None = None,
        margin: float = 1.0,
        swap: bool = False,
        reduction: str = "mean",
    ) -> None:
        super().__init__(reduction)
        self.distance_function, self.margin, self.swap = distance_function, margin, swap

    def construct(self, anchor: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        settings = (self.distance_function, self.margin, self.swap, self.reduction)
        return distances.triplet_margin_with_distance_loss(anchor, positive, negative, *settings)


class CosineSimilarity(Module):
    """Cosine of the angle along `dim`."""

    def __init__(self, dim: int = 1, eps: float = 1e-8) -> None:
        super().__init__()
        self.dim, self.eps = dim, eps

    def construct(self, x1: Tensor, x2: Tensor) -> Tensor:
        return distances.cosine_similarity(x1, x2, self.dim, self.eps)


class PairwiseDistance(Module):
    """Length of the difference of rows."""

    def __init__(self, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> None:
        super().__init__()
        self.norm, self.eps, self.keepdim = p, eps, keepdim

    def construct(self, x1: Tensor, x2: Tensor) -> Tensor:
        return distances.pairwise_distance(x1, x2, self.norm, self.eps, self.keepdim)
