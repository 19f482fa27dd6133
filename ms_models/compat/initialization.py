"""Initial values in transformers' way: parameters that were loaded, `_is_hf_initialized`, keep theirs."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from typing import Any

from mindspore import Parameter, Tensor

from . import init


def _unless_loaded(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    @wraps(function)
    def guarded(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return tensor if getattr(tensor, "_is_hf_initialized", False) else function(tensor, *args, **kwargs)

    return guarded


uniform_ = _unless_loaded(init.uniform_)
normal_ = _unless_loaded(init.normal_)
trunc_normal_ = _unless_loaded(init.trunc_normal_)
constant_ = _unless_loaded(init.constant_)
zeros_ = _unless_loaded(init.zeros_)
ones_ = _unless_loaded(init.ones_)
eye_ = _unless_loaded(init.eye_)
dirac_ = _unless_loaded(init.dirac_)
sparse_ = _unless_loaded(init.sparse_)
xavier_uniform_ = _unless_loaded(init.xavier_uniform_)
xavier_normal_ = _unless_loaded(init.xavier_normal_)
kaiming_uniform_ = _unless_loaded(init.kaiming_uniform_)
kaiming_normal_ = _unless_loaded(init.kaiming_normal_)
orthogonal_ = _unless_loaded(init.orthogonal_)


@_unless_loaded
def copy_(tensor: Tensor, other: Tensor) -> Tensor:
    """Take the values of another tensor, which may be of a smaller shape that fits."""
    values = other.broadcast_to(tensor.shape).astype(tensor.dtype)
    if isinstance(tensor, Parameter):
        tensor.set_data(values)
    else:
        tensor.assign_value(values)
    return tensor


@_unless_loaded
def lecun_normal_(tensor: Tensor) -> Tensor:
    """Cut normal distribution of variance 1 / fan_in; the constant is what the cut takes off its deviation."""
    return init.trunc_normal_(tensor, std=math.sqrt(1.0 / init.fans(tensor)[0]) / 0.87962566103423978)


@_unless_loaded
def default_flax_embed_init_(tensor: Tensor) -> Tensor:
    """Normal distribution of variance 1 / fan_in."""
    return init.normal_(tensor, std=math.sqrt(1.0 / init.fans(tensor)[0]))
