"""Frequencies of rotary position embeddings by the `rope_parameters` of a transformers configuration.

Every function takes a configuration and gives the inverse frequencies `[dim / 2]`, float32, and a factor of cosines and
sines. `linear` is position interpolation (Chen et al. 2023), `dynamic` NTK-aware scaling, `yarn` Peng et al. 2023,
`longrope` Ding et al. 2024, `llama3` the scaling of Llama 3.1.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from functools import wraps
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor

Frequencies = tuple[Tensor, float]


def _parameters(config: Any, layer_type: str | None) -> tuple[Any, dict[str, Any]]:
    """The configuration of a layer and its rope parameters."""
    if layer_type is not None:
        with contextlib.suppress(ValueError):  # one configuration for all types of layers
            config = config.per_layer_config[layer_type]
    config.standardize_rope_params()
    return config, config.rope_parameters if layer_type is None else config.rope_parameters[layer_type]


def _head_dim(config: Any) -> int:
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def _rotated(config: Any, parameters: dict[str, Any]) -> int:
    """Dimensions of a head that are rotated."""
    return int(_head_dim(config) * parameters.get("partial_rotary_factor", 1.0))


def _inverse(base: float, dim: int) -> np.ndarray:
    """`base^(-2i / dim)` in float32, step by step as torch rounds it."""
    exponents = np.arange(0, dim, 2, dtype=np.int64).astype(np.float32) / np.float32(dim)
    return np.float32(1.0) / np.power(np.float32(base), exponents, dtype=np.float32)


def _linear(config: Any, device: Any = None, seq_len: Any = None, layer_type: str | None = None) -> Frequencies:
    config, parameters = _parameters(config, layer_type)
    plain = _inverse(parameters["rope_theta"], _rotated(config, parameters))
    return Tensor(plain / np.float32(parameters["factor"])), 1.0


def _proportional(
    config: Any, device: Any = None, seq_len: Any = None, layer_type: str | None = None, head_dim_key: str = "head_dim"
) -> Frequencies:
    config, parameters = _parameters(config, layer_type)
    size = getattr(config, head_dim_key, None) or config.hidden_size // config.num_attention_heads
    angles = int(parameters.get("partial_rotary_factor", 1.0) * size // 2)
    exponents = np.arange(0, 2 * angles, 2).astype(np.float32) / np.float32(size)
    rotated = np.float32(1.0) / np.power(np.float32(parameters["rope_theta"]), exponents, dtype=np.float32)
    rest = np.zeros(size // 2 - angles, np.float32)
    return Tensor(np.concatenate([rotated, rest]) / np.float32(parameters.get("factor", 1.0))), 1.0


def _dynamic(config: Any, device: Any = None, seq_len: Any = None, layer_type: str | None = None) -> Frequencies:
    config, parameters = _parameters(config, layer_type)
    dim, factor, trained = _rotated(config, parameters), parameters["factor"], config.max_position_embeddings
    length = max(trained if seq_len is None else int(seq_len), trained)
    base = parameters["rope_theta"] * ((factor * length / trained) - (factor - 1)) ** (dim / (dim - 2))
    return Tensor(_inverse(base, dim)), 1.0


def _yarn(config: Any, device: Any = None, seq_len: Any = None, layer_type: str | None = None) -> Frequencies:
    config, parameters = _parameters(config, layer_type)
    base, dim, factor = parameters["rope_theta"], _rotated(config, parameters), parameters["factor"]
    trained = parameters["original_max_position_embeddings"]
    if factor is None:
        factor = config.max_position_embeddings / trained
    attention = parameters.get("attention_factor")
    if attention is None:
        mscale, all_dim = parameters.get("mscale"), parameters.get("mscale_all_dim")
        both = bool(mscale and all_dim)
        attention = _mscale(factor, mscale) / _mscale(factor, all_dim) if both else _mscale(factor, 1)

    def dimension(rotations: float) -> float:
        """The dimension that turns `rotations` times within the trained length."""
        return dim * math.log(trained / (rotations * 2 * math.pi)) / (2 * math.log(base))

    low = dimension(parameters.get("beta_fast") or 32)
    high = dimension(parameters.get("beta_slow") or 1)
    if config.rope_parameters.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    high = high + 0.001 if low == high else high
    ramp = np.clip((np.arange(dim // 2, dtype=np.float32) - np.float32(low)) / np.float32(high - low), 0, 1)
    keep = np.float32(1) - ramp
    exponents = np.arange(0, dim, 2).astype(np.float32) / np.float32(dim)
    powers = np.power(np.float32(base), exponents, dtype=np.float32)
    interpolated = np.float32(1) / (np.float32(factor) * powers)
    return Tensor(
        (interpolated * (np.float32(1) - keep) + (np.float32(1) / powers) * keep).astype(np.float32)
    ), attention


def _mscale(scale: float, mscale: Any) -> float:
    return 1.0 if scale <= 1 else 0.1 * mscale * math.log(scale) + 1.0


def _longrope(config: Any, device: Any = None, seq_len: Any = None, layer_type: str | None = None) -> Frequencies:
    config, parameters = _parameters(config, layer_type)
    dim, factor = _rotated(config, parameters), parameters.get("factor")
    trained = parameters["original_max_position_embeddings"]
    if factor is None:
        factor = config.max_position_embeddings / trained
    attention = parameters.get("attention_factor")
    if attention is None:
        attention = 1.0 if factor <= 1.0 else math.sqrt(1 + math.log(factor) / math.log(trained))
    long = seq_len is not None and int(seq_len) > trained
    factors = np.array(parameters["long_factor" if long else "short_factor"], np.float32)
    exponents = np.arange(0, dim, 2).astype(np.float32) / np.float32(dim)
    powers = np.power(np.float32(parameters["rope_theta"]), exponents, dtype=np.float32)
    return Tensor(np.float32(1) / (factors * powers)), attention


def _llama3(config: Any, device: Any = None, seq_len: Any = None, layer_type: str | None = None) -> Frequencies:
    config, parameters = _parameters(config, layer_type)
    plain = _inverse(parameters["rope_theta"], _rotated(config, parameters))
    factor, low, high = (parameters[name] for name in ("factor", "low_freq_factor", "high_freq_factor"))
    trained = parameters["original_max_position_embeddings"]
    lengths = np.float32(2 * math.pi) / plain
    scaled = np.where(lengths > trained / low, plain / np.float32(factor), plain)
    smooth = (np.float32(trained) / lengths - np.float32(low)) / np.float32(high - low)
    blended = (np.float32(1) - smooth) * scaled / np.float32(factor) + smooth * scaled
    between = ~(lengths < trained / high) & ~(lengths > trained / low)
    return Tensor(np.where(between, blended, scaled).astype(np.float32)), 1.0


ROPE_INIT_FUNCTIONS: dict[str, Callable[..., Frequencies]] = {
    "linear": _linear,
    "dynamic": _dynamic,
    "yarn": _yarn,
    "longrope": _longrope,
    "llama3": _llama3,
    "proportional": _proportional,
}


def dynamic_rope_update(rope_forward: Callable[..., Any]) -> Callable[..., Any]:
    """Before a rotary module runs, new frequencies if its type takes them from the length it sees."""

    @wraps(rope_forward)
    def wrapper(self: Any, x: Tensor, position_ids: Tensor, layer_type: str | None = None) -> Any:
        kind = self.rope_type if layer_type is None else self.rope_type[layer_type]
        if "dynamic" in kind or kind == "longrope":
            length = int(position_ids.max().asnumpy()) + 1
            (_grow if "dynamic" in kind else _short_or_long)(self, kind, length, layer_type)
        return rope_forward(self, x, position_ids, **({} if layer_type is None else {"layer_type": layer_type}))

    return wrapper


def _replace(module: Any, name: str, value: Tensor) -> None:
    held = module.__dict__ if name in module.__dict__ else module._buffers  # a cell refuses to replace its buffers
    held[name] = value


def _grow(module: Any, kind: str, length: int, layer_type: str | None) -> None:
    """Frequencies of a longer text; those of the trained length come back for a short one."""
    prefix = "" if layer_type is None else f"{layer_type}_"
    cached = getattr(module, f"{prefix}max_seq_len_cached", module.max_seq_len_cached)
    if length > cached:
        found, module.attention_scaling = ROPE_INIT_FUNCTIONS[kind](
            module.config, seq_len=length, layer_type=layer_type
        )
        _replace(module, f"{prefix}inv_freq", found)
        setattr(module, f"{prefix}max_seq_len_cached", length)
    trained = module.original_max_seq_len
    if length < trained < cached:
        _replace(module, f"{prefix}inv_freq", getattr(module, f"{prefix}original_inv_freq"))
        setattr(module, f"{prefix}max_seq_len_cached", trained)


def _short_or_long(module: Any, kind: str, length: int, layer_type: str | None) -> None:
    """The long factors beyond the trained length, the short ones up to it."""
    prefix = "" if layer_type is None else f"{layer_type}_"
    parameters = module.config.rope_parameters if layer_type is None else module.config.rope_parameters[layer_type]
    trained = parameters["original_max_position_embeddings"]
    found = getattr(module, f"{prefix}original_inv_freq")
    if length > trained:
        found, _ = ROPE_INIT_FUNCTIONS[kind](module.config, seq_len=trained + 1, layer_type=layer_type)
    _replace(module, f"{prefix}inv_freq", found.astype(ms.float32))
