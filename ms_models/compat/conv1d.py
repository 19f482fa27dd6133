"""Layers and functions of transformers' `pytorch_utils`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from mindspore import Parameter, Tensor, ops

from . import init
from .layers import Linear
from .module import Module
from .normalization import LayerNorm
from .products import addmm

ALL_LAYERNORM_LAYERS: list[type] = [LayerNorm]
"""Whose weights no decay is applied to; model files add their own."""


class Conv1D(Module):
    """A linear layer with its weight `[in, out]`, drawn from N(0, 0.02^2); the one of GPT-2."""

    def __init__(self, nf: int, nx: int) -> None:
        super().__init__()
        self.nf = nf
        self.nx = nx
        self.weight = Parameter(init.empty((nx, nf)))
        self.bias = Parameter(init.empty((nf,)))
        init.normal_(self.weight, std=0.02)

    def construct(self, x: Tensor) -> Tensor:
        rows = addmm(self.bias, x.reshape(-1, x.shape[-1]), self.weight)
        return rows.reshape((*x.shape[:-1], self.nf))


def apply_chunking_to_forward(
    forward_fn: Callable[..., Tensor], chunk_size: int, chunk_dim: int, *input_tensors: Tensor
) -> Tensor:
    """`forward_fn` on pieces of `chunk_size` along `chunk_dim`, put together again; at once where it is 0.

    Raises:
        ValueError: the number of tensors, their sizes, or a size that `chunk_size` does not divide.
    """
    wanted = len(inspect.signature(forward_fn).parameters)
    if wanted != len(input_tensors):
        raise ValueError(f"forward_fn takes {wanted} arguments, and {len(input_tensors)} tensors are given")
    if chunk_size <= 0:
        return forward_fn(*input_tensors)
    sizes = {tensor.shape[chunk_dim] for tensor in input_tensors}
    size = sizes.pop()
    if sizes or size % chunk_size:
        raise ValueError(f"every tensor needs the same size along {chunk_dim}, a multiple of {chunk_size}")
    pieces: list[Any] = [ops.chunk(tensor, size // chunk_size, chunk_dim) for tensor in input_tensors]
    return ops.cat([forward_fn(*parts) for parts in zip(*pieces, strict=True)], chunk_dim)


def prune_linear_layer(layer: Linear, index: Tensor, dim: int = 0) -> Linear:
    """A layer with some of the outputs of another, or with `dim=1` some of its inputs."""
    outputs, inputs = layer.weight.shape
    count = index.shape[0]
    kept = Linear(inputs if dim == 0 else count, count if dim == 0 else outputs, bias=layer.bias is not None)
    kept.weight.set_data(ops.gather(layer.weight, index, dim))
    if layer.bias is not None:
        kept.bias.set_data(ops.gather(layer.bias, index, 0) if dim == 0 else layer.bias.copy())
    return kept
