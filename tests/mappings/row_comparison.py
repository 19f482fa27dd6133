"""Element-wise comparison of what torch and MindSpore computed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mindspore as ms
import numpy as np
import torch

from ms_models.compat.device import device

# Both frameworks compute in float32 with sums of at most a few dozen terms in another order: a few units of 2^-23.
RTOL, ATOL = 1e-5, 1e-6


def as_array(value: Any) -> np.ndarray[Any, Any]:
    """Values of a tensor of either framework; bfloat16 as float32."""
    if isinstance(value, torch.Tensor):
        value = value.detach()
        if value._is_zerotensor():  # a gradient that torch never allocated
            value = torch.zeros(value.shape, dtype=value.dtype)
        return value.float().numpy() if value.dtype is torch.bfloat16 else value.resolve_conj().numpy()
    return value.astype(ms.float32).asnumpy() if value.dtype == ms.bfloat16 else value.asnumpy()


def dtype_name(value: Any) -> str:
    """`float32` for the float32 of either framework."""
    text = str(value).lower().removeprefix("torch.").removeprefix("mindspore.")
    return {"bool_": "bool"}.get(text, text)


def differences(expected: Any, actual: Any, where: str = "result", rtol: float = RTOL, atol: float = ATOL) -> list[str]:
    """What differs between torch's `expected` and MindSpore's `actual`: structure, shape, data type, values."""
    if isinstance(expected, torch.Tensor):
        if not isinstance(actual, ms.Tensor):
            return [f"{where}: torch gives a tensor, MindSpore a {type(actual).__name__}"]
        found = []
        if tuple(expected.shape) != tuple(actual.shape):
            found.append(f"{where}: shape {tuple(expected.shape)} against {tuple(actual.shape)}")
        if dtype_name(expected.dtype) != dtype_name(actual.dtype):
            found.append(f"{where}: data type {expected.dtype} against {actual.dtype}")
        if not found and not np.allclose(as_array(expected), as_array(actual), rtol=rtol, atol=atol, equal_nan=True):
            found.append(f"{where}: values\n{as_array(expected)}\nagainst\n{as_array(actual)}")
        return found
    if isinstance(expected, torch.dtype):
        same = isinstance(actual, ms.Type) and dtype_name(expected) == dtype_name(actual)
        return [] if same else [f"{where}: {expected} against {actual!r}"]
    if isinstance(expected, torch.device):
        same = isinstance(actual, device) and str(expected) == str(actual)
        return [] if same else [f"{where}: {expected} against {actual!r}"]
    if isinstance(expected, np.ndarray):
        same = isinstance(actual, np.ndarray) and expected.dtype == actual.dtype and expected.shape == actual.shape
        same = same and np.allclose(expected, actual, rtol=rtol, atol=atol, equal_nan=True)
        return [] if same else [f"{where}: array {expected} against {actual!r}"]
    if isinstance(expected, tuple | list):
        if not isinstance(actual, tuple | list) or len(expected) != len(actual):
            return [f"{where}: {len(expected)} items against {actual!r}"]
        pairs = zip(expected, actual, strict=True)
        return [d for i, (e, a) in enumerate(pairs) for d in differences(e, a, f"{where}[{i}]", rtol, atol)]
    if isinstance(expected, Mapping):
        if not isinstance(actual, Mapping) or list(expected) != list(actual):
            return [
                f"{where}: keys {list(expected)} against {list(actual) if isinstance(actual, Mapping) else actual!r}"
            ]
        return [d for k in expected for d in differences(expected[k], actual[k], f"{where}[{k!r}]", rtol, atol)]
    if isinstance(expected, float):
        # a Python float that came out of a float32 tensor
        close = isinstance(actual, float) and np.isclose(expected, actual, rtol=rtol, atol=atol, equal_nan=True)
        return [] if close else [f"{where}: {expected!r} against {actual!r}"]
    return (
        [] if type(expected) is type(actual) and expected == actual else [f"{where}: {expected!r} against {actual!r}"]
    )
