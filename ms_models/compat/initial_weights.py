"""Initial values of the modules of a model, in the order and with the rules of transformers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mindspore import Tensor, nn

from . import init

_PROJECTIONS = {"Linear", "Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d"}
_NORMS = {"GroupNorm", "BatchNorm1d", "BatchNorm2d", "BatchNorm3d"}


def initialize(model: Any) -> None:
    """Calls `_init_weights` of the model for everything below it, children first, and for itself.

    A model inside the model uses its own `_init_weights`; what has its values already is left alone.
    """
    _apply(model, model._init_weights)


def _apply(cell: Any, draw: Callable[[nn.Cell], None]) -> None:
    for child in cell.cells():
        _apply(child, child._init_weights if _is_model(child) else draw)
    if not getattr(cell, "_is_hf_initialized", False):
        draw(cell)
        cell._is_hf_initialized = True


def _is_model(cell: nn.Cell) -> bool:
    """Whether a cell is a `PreTrainedModel`, whose file imports this one."""
    return any(base.__name__ == "PreTrainedModel" for base in type(cell).__mro__)


def default_init(config: Any, module: Any) -> None:
    """N(0, std^2) for projections and embeddings, 0 for biases, 1 for norms; std is the configuration's."""
    kinds = {base.__name__ for base in type(module).__mro__}
    name = type(module).__name__
    weight: Any = getattr(module, "weight", None)
    bias: Any = getattr(module, "bias", None)
    if kinds & _PROJECTIONS:
        if weight is not None:
            init.normal_(weight, 0.0, _std(config))
        if bias is not None:
            init.zeros_(bias)
    elif "LSTM" in kinds:
        for parameter, value in module.named_parameters():
            if "weight" in parameter:
                init.xavier_uniform_(value)
            else:
                init.zeros_(value)
    elif "Embedding" in kinds:
        init.normal_(weight, 0.0, _std(config))
        if module.padding_idx is not None:
            values = weight.asnumpy().copy()
            values[module.padding_idx] = 0
            weight.assign_value(Tensor(values, weight.dtype))
    elif "MultiheadAttention" in kinds:
        module._reset_parameters()
    elif kinds & _NORMS or "LayerNorm" in name or "RMSNorm" in name:
        if weight is not None:
            init.ones_(weight)
        if bias is not None:
            init.zeros_(bias)


def _std(config: Any) -> float:
    if hasattr(config, "initializer_range"):
        return float(config.initializer_range or 0.02)
    return float(getattr(config, "init_std", getattr(config, "initializer_factor", 0.02)))
