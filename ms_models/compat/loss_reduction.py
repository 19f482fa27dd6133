"""The `reduction` argument of losses."""

from __future__ import annotations

from mindspore import Tensor


def reduced(losses: Tensor, reduction: str = "mean") -> Tensor:
    """`losses` as they are (`none`), their mean or their sum.

    Raises:
        ValueError: another word.
    """
    if reduction == "none":
        return losses
    if reduction == "mean":
        return losses.mean()
    if reduction == "sum":
        return losses.sum()
    raise ValueError(f"{reduction} is not a valid value for reduction")
