"""Another number of tokens for the embeddings and the head of a model."""

from __future__ import annotations

from typing import Any

import numpy as np
from mindspore import Parameter, Tensor

from .random import default_generator

_SPREAD = 1e-9
"""Of the new rows around the mean, as a share of the covariance of the old ones; the value of transformers."""


def resize(model: Any, tokens: int | None, multiple: int | None, around_mean: bool) -> Any:
    """Change the input embeddings, and the head to the same number of rows.

    Args:
        model: with `get_input_embeddings`, `get_output_embeddings` and `_init_weights`.
        tokens: rows; None for as many as there are.
        multiple: round the rows up to a multiple of this.
        around_mean: draw new rows around the mean of the old ones (Hewitt, 2021), else as the model draws its weights.

    Returns:
        The input embeddings.
    """
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    rows = embedding.weight.shape[0] if tokens is None else tokens
    if multiple is not None:
        rows = -(-rows // multiple) * multiple
    tied = head is not None and head.weight is embedding.weight
    for module in [embedding] if head is None or tied else [embedding, head]:
        if module.weight.shape[0] != rows:
            _resize_module(model, module, rows, around_mean)
    if tied:
        head.weight = embedding.weight
        if getattr(head, "bias", None) is not None and head.bias.shape[0] != rows:
            head.bias = _parameter(_bias(head.bias, rows, around_mean), head.bias)
    for module in (embedding, head):
        for name in ("num_embeddings", "out_features"):
            if hasattr(module, name):
                setattr(module, name, rows)
    if getattr(embedding, "padding_idx", None) is not None and embedding.padding_idx >= rows:
        embedding.padding_idx = None
    return embedding


def _resize_module(model: Any, module: Any, rows: int, around_mean: bool) -> None:
    old, bias = module.weight, getattr(module, "bias", None)
    kept = old.float().asnumpy()[:rows]
    added = rows - len(kept)
    if added and not around_mean:
        module.weight = _parameter(np.zeros((rows, old.shape[1])), old)
        padding, module.padding_idx = getattr(module, "padding_idx", None), None
        model._init_weights(module)
        module.padding_idx = padding
        new = module.weight.float().asnumpy()[len(kept) :]
    else:
        new = _around_mean(old.float().asnumpy(), added)
    module.weight = _parameter(np.concatenate((kept, new)), old)
    if bias is not None:
        module.bias = _parameter(_bias(bias, rows, around_mean), bias)


def _around_mean(values: Any, added: int) -> Any:
    mean = values.mean(0)
    centred = (values - mean).astype(np.float64)
    spread = _SPREAD * centred.T @ centred / len(values)
    return default_generator.numpy.multivariate_normal(mean, spread, added, method="eigh")


def _bias(old: Tensor, rows: int, around_mean: bool) -> Any:
    values = old.float().asnumpy()
    drawn = default_generator.numpy.standard_normal(max(0, rows - len(values)))
    new = values.mean() + _SPREAD * values.std(ddof=1) * drawn if around_mean else 0 * drawn
    return np.concatenate((values[:rows], new))


def _parameter(values: Any, like: Parameter) -> Parameter:
    return Parameter(Tensor(values.astype(np.float32)).astype(like.dtype), requires_grad=like.requires_grad)
