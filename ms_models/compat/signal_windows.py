"""Window functions of `torch.signal.windows`; `sym=False` gives a period of the window with one more point."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor


def _window(M: int, sym: bool, dtype: Any, values: Callable[[np.ndarray, int], np.ndarray]) -> Tensor:
    """`values(k, n)` at `k = 0 ... M - 1`, for a window of `n` points; one point is 1."""
    if M < 0:
        raise ValueError(f"a window has no {M} points")
    points = M if sym else M + 1
    window = np.ones(M) if M < 2 else values(np.arange(M, dtype=np.float64), points)
    return Tensor(window, dtype or ms.float32)


def _cosines(M: int, weights: Sequence[float], sym: bool, dtype: Any) -> Tensor:
    def values(k: np.ndarray, n: int) -> np.ndarray:
        terms = [(-1) ** i * w * np.cos(2 * np.pi * i * k / (n - 1)) for i, w in enumerate(weights)]
        return np.sum(terms, axis=0)

    return _window(M, sym, dtype, values)


def general_cosine(M: int, a: Sequence[float], sym: bool = True, dtype: Any = None) -> Tensor:
    """Sum of cosines with alternating signs and the weights `a`."""
    return _cosines(M, a, sym, dtype)


def general_hamming(M: int, alpha: float = 0.54, sym: bool = True, dtype: Any = None) -> Tensor:
    """`alpha - (1 - alpha) cos`."""
    return _cosines(M, (alpha, 1.0 - alpha), sym, dtype)


def hamming(M: int, sym: bool = True, dtype: Any = None) -> Tensor:
    """General Hamming window with 0.54."""
    return general_hamming(M, 0.54, sym, dtype)


def hann(M: int, sym: bool = True, dtype: Any = None) -> Tensor:
    """General Hamming window with 0.5."""
    return general_hamming(M, 0.5, sym, dtype)


def blackman(M: int, sym: bool = True, dtype: Any = None) -> Tensor:
    """Three cosines: 0.42, 0.5, 0.08."""
    return _cosines(M, (0.42, 0.5, 0.08), sym, dtype)


def nuttall(M: int, sym: bool = True, dtype: Any = None) -> Tensor:
    """Four cosines with Nuttall's weights of the lowest side lobe."""
    return _cosines(M, (0.3635819, 0.4891775, 0.1365995, 0.0106411), sym, dtype)


def bartlett(M: int, sym: bool = True, dtype: Any = None) -> Tensor:
    """Triangle that is 0 at its ends."""
    return _window(M, sym, dtype, lambda k, n: 1.0 - np.abs(2.0 * k / (n - 1) - 1.0))


def cosine(M: int, sym: bool = True, dtype: Any = None) -> Tensor:
    """Half a period of a sine."""
    return _window(M, sym, dtype, lambda k, n: np.sin(np.pi * (k + 0.5) / n))


def exponential(M: int, center: float | None = None, tau: float = 1.0, sym: bool = True, dtype: Any = None) -> Tensor:
    """`exp(-|k - center| / tau)`."""

    def values(k: np.ndarray, n: int) -> np.ndarray:
        middle = (n - 1) / 2 if center is None else center
        return np.exp(-np.abs(k - middle) / tau)

    return _window(M, sym, dtype, values)


def gaussian(M: int, std: float = 1.0, sym: bool = True, dtype: Any = None) -> Tensor:
    """`exp(-(k - middle)^2 / (2 std^2))`."""
    return _window(M, sym, dtype, lambda k, n: np.exp(-(((k - (n - 1) / 2) / std) ** 2) / 2))


def kaiser(M: int, beta: float = 12.0, sym: bool = True, dtype: Any = None) -> Tensor:
    """`i0(beta sqrt(1 - (2 k / (n - 1) - 1)^2)) / i0(beta)`."""

    def values(k: np.ndarray, n: int) -> np.ndarray:
        inside = np.maximum(1.0 - (2.0 * k / (n - 1) - 1.0) ** 2, 0.0)
        return np.i0(beta * np.sqrt(inside)) / np.i0(beta)

    return _window(M, sym, dtype, values)
