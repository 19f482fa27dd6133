"""Linear, Embedding, Dropout, Identity with torch's parameter names, shapes and initial values."""

from __future__ import annotations

import math
from typing import Any

from mindspore import Parameter, Tensor, _no_grad, ops

from . import init
from .module import Module
from .products import linear


class Linear(Module):
    """`y = x W^T + b`; weight `[out_features, in_features]`, both drawn from U(-1/sqrt(in), 1/sqrt(in))."""

    def __init__(self, in_features: int, out_features: int, bias: bool = True, dtype: Any = None) -> None:
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        self.weight = Parameter(init.empty((out_features, in_features), dtype))
        if bias:
            self.bias = Parameter(init.empty((out_features,), dtype))
        else:
            self.register_parameter("bias", None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new initial values."""
        init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        if self.bias is not None:
            bound = 1 / math.sqrt(self.in_features) if self.in_features > 0 else 0
            init.uniform_(self.bias, -bound, bound)

    def construct(self, input: Tensor) -> Tensor:
        return linear(input, self.weight, self.bias)


class Embedding(Module):
    """Rows of `weight` `[num_embeddings, embedding_dim]`, drawn from N(0, 1); the row of `padding_idx` stays zero."""

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        if padding_idx is not None and not -num_embeddings <= padding_idx < num_embeddings:
            raise ValueError(f"padding_idx {padding_idx} must be within the {num_embeddings} embeddings")
        self.num_embeddings = num_embeddings
        self.embedding_dim = embedding_dim
        self.padding_idx = padding_idx % num_embeddings if padding_idx is not None else None
        self.max_norm, self.norm_type = max_norm, norm_type
        self.scale_grad_by_freq, self.sparse = scale_grad_by_freq, sparse
        self.weight = Parameter(init.empty((num_embeddings, embedding_dim), dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new initial values."""
        init.normal_(self.weight)
        if self.padding_idx is not None:
            values = self.weight.asnumpy().copy()
            values[self.padding_idx] = 0
            self.weight.set_data(Tensor(values, self.weight.dtype))

    def construct(self, input: Tensor) -> Tensor:
        settings = (self.padding_idx, self.max_norm, self.norm_type, self.scale_grad_by_freq)
        return embedding(input, self.weight, *settings)


def embedding(
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
) -> Tensor:
    """Rows of `weight` `[n, d]` at the positions `input` `[...]`: `[..., d]`; no gradient reaches row `padding_idx`.

    Args:
        input: positions.
        weight: with `max_norm` it is changed, as in torch.
        padding_idx: row without gradient.
        max_norm: rows at the positions whose norm is larger are shortened to it first.
        norm_type: p of that norm.
        scale_grad_by_freq: divide the gradient of a row by the number of times that it is taken.
    """
    if max_norm is not None:
        _shorten(weight, input, max_norm, norm_type)
    rows = ops.gather(weight, input, 0)
    if scale_grad_by_freq:
        places = input.reshape(-1)
        times = (places.expand_dims(0) == places.expand_dims(1)).astype(rows.dtype).sum(1)
        fixed = ops.stop_gradient(rows)
        rows = fixed + (rows - fixed) / times.reshape((*input.shape, 1))
    if padding_idx is None:
        return rows
    padding = (input == padding_idx % weight.shape[0]).expand_dims(-1)
    return ops.where(padding, ops.stop_gradient(rows), rows)


@_no_grad()
def _shorten(weight: Tensor, input: Tensor, max_norm: float, norm_type: float) -> None:
    norms = ops.norm(weight, norm_type, 1, keepdim=True)
    taken = (ops.arange(weight.shape[0]).expand_dims(1) == input.reshape(1, -1)).any(1, True)
    # 1e-7 is torch's guard against a division by zero.
    shortened = weight * (max_norm / (norms + 1e-7))
    weight.copy_(ops.where(ops.logical_and(taken, norms > max_norm), shortened, weight))


class Dropout(Module):
    """Zeroes elements with probability `p` in training mode and scales the others by 1/(1-p)."""

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        super().__init__()
        if not 0.0 <= p <= 1.0:
            raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")
        if inplace:
            raise ValueError("Dropout(inplace=True) would overwrite its input; use the returned tensor")
        self.p = p

    def construct(self, input: Tensor) -> Tensor:
        return dropout(input, self.p, self.training)


def dropout(input: Tensor, p: float = 0.5, training: bool = True) -> Tensor:
    """Dropout as a function; `training` is on by default, as in torch."""
    if not training or p == 0.0:
        return input
    if p == 1.0:
        return input * 0.0
    return ops.dropout(input, p, True)


class Identity(Module):
    """Returns its input; takes and ignores any arguments."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()

    def construct(self, input: Tensor) -> Tensor:
        return input
