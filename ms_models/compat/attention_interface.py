"""Attention functions by the name that a configuration gives them, as transformers' models choose them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from typing import Any

import mindspore as ms
from mindspore import Tensor, nn, ops

from .attention import scaled_dot_product_attention
from .dtypes import finfo


def repeat_kv(hidden_states: Tensor, n_rep: int) -> Tensor:
    """`[batch, key heads, positions, size]` with every head `n_rep` times."""
    return hidden_states if n_rep == 1 else ops.repeat_interleave(hidden_states, n_rep, 1)


def sdpa_attention_forward(
    module: nn.Cell,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    position_bias: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention of `[batch, heads, positions, size]` without its weights; causal where there is no mask.

    Returns:
        `[batch, positions, heads, size]`, and None for the weights.
    """
    if kwargs.get("softcap") is not None:
        raise ValueError("sdpa has no softcap; use the attention 'eager'")
    groups = getattr(module, "num_key_value_groups", 1)
    key, value = repeat_kv(key, groups), repeat_kv(value, groups)
    length = query.shape[2]
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    causal = bool(causal) and length > 1 and attention_mask is None
    if causal and key.shape[2] > length:  # room of a static cache that is not used yet
        key, value = key[:, :, :length, :], value[:, :, :length, :]
        position_bias = None if position_bias is None else position_bias[:, :, :, :length]
    if position_bias is not None:
        attention_mask, causal = _biased(position_bias, attention_mask, causal, key.dtype), False
    output = scaled_dot_product_attention(query, key, value, attention_mask, dropout, causal, scaling)
    return output.swapaxes(1, 2), None


def _biased(bias: Tensor, mask: Tensor | None, causal: bool, dtype: Any) -> Tensor:
    """Numbers to add to the scores: the bias, and the smallest of the type where nothing is to be seen."""
    if mask is not None and mask.dtype != ms.bool_:
        return bias + mask
    if mask is None and not causal:
        return bias
    if mask is None:
        mask = ops.tril(ops.ones((1, 1, *bias.shape[-2:]), dtype=ms.int32)).astype(ms.bool_)
    return ops.where(mask, bias, ops.full_like(bias, finfo(dtype).min))


class AttentionInterface(MutableMapping[str, Callable[..., Any]]):
    """Name -> attention function; one that is set on an object is seen there, one that is registered everywhere."""

    _global_mapping: dict[str, Callable[..., Any]] = {"sdpa": sdpa_attention_forward}

    def __init__(self) -> None:
        self._local_mapping: dict[str, Callable[..., Any]] = {}

    def __getitem__(self, key: str) -> Callable[..., Any]:
        return self._local_mapping[key] if key in self._local_mapping else self._global_mapping[key]

    def __setitem__(self, key: str, value: Callable[..., Any]) -> None:
        self._local_mapping[key] = value

    def __delitem__(self, key: str) -> None:
        del self._local_mapping[key]

    def __iter__(self) -> Iterator[str]:
        return iter({**self._global_mapping, **self._local_mapping})

    def __len__(self) -> int:
        return len({**self._global_mapping, **self._local_mapping})

    @classmethod
    def register(cls, key: str, value: Callable[..., Any]) -> None:
        """Adds a function for every object."""
        cls._global_mapping[key] = value

    def valid_keys(self) -> list[str]:
        """Names that have a function."""
        return list(self)

    def get_interface(self, attn_implementation: str | None, default: Callable[..., Any]) -> Callable[..., Any]:
        """The function of a name; `default`, the model's own, for `eager` and None.

        Raises:
            KeyError: the name has none; the kernels of flash and flex attention are among them.
        """
        if attn_implementation in (None, "eager"):
            return default
        if attn_implementation not in self:
            raise KeyError(f"attention {attn_implementation!r} has no counterpart; use 'eager' or 'sdpa'")
        return self[attn_implementation]


ALL_ATTENTION_FUNCTIONS = AttentionInterface()
