"""How far a compiled result may be from the eager one, and how both are made comparable."""

from __future__ import annotations

from typing import Any

import numpy as np

BOUND = 1e-5
"""Of the norm of a gradient, and of the loss: the compiler orders sums of float32 otherwise."""
BOUND_16 = 1e-2
"""The same for 16 bit floats, which keep 8 or 11 bits."""


def bound_of(tensor: Any) -> float:
    """The bound for a tensor's type, in parts of its norm."""
    return BOUND_16 if "16" in str(tensor.dtype) and "Float" in str(tensor.dtype) else BOUND


def array(tensor: Any) -> np.ndarray:
    """Its values in 64 bits, twice that for complex numbers."""
    values = (tensor.float() if "BFloat" in str(tensor.dtype) else tensor).asnumpy()
    return np.asarray(values, np.complex128 if np.iscomplexobj(values) else np.float64)


def distance(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Norms of the difference and of `x`, without infinities and NaN; if these differ, the first norm is infinite."""
    finite = np.isfinite(x)
    norm = float(np.linalg.norm(x[finite]))
    if not np.array_equal(finite, np.isfinite(y)) or not np.array_equal(x[~finite], y[~finite], equal_nan=True):
        return float("inf"), norm
    return float(np.linalg.norm(x[finite] - y[finite])), norm


class without_dropout:
    """Two runs with dropout cannot be compared: each draws other masks."""

    calls = 0
    """Of dropout."""

    def __enter__(self) -> without_dropout:
        from mindspore import ops

        def none(input: Any, *args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            return input

        self.dropout = ops.dropout
        ops.dropout = none
        return self

    def __exit__(self, *exc: object) -> None:
        from mindspore import ops

        ops.dropout = self.dropout
