"""`assert_close` with torch's tolerances, structure and data type checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor

# Relative and absolute tolerance by data type, as torch documents them; exact for integers and bool.
_TOLERANCES = {
    ms.float16: (1e-3, 1e-5),
    ms.bfloat16: (1.6e-2, 1e-5),
    ms.float32: (1.3e-6, 1e-5),
    ms.float64: (1e-7, 1e-7),
    ms.complex64: (1.3e-6, 1e-5),
    ms.complex128: (1e-7, 1e-7),
}
_NUMBERS = (bool, int, float, complex, np.number, np.bool_)


def assert_close(
    actual: Any,
    expected: Any,
    *,
    rtol: float | None = None,
    atol: float | None = None,
    equal_nan: bool = False,
    check_dtype: bool = True,
    msg: str | Callable[[str], str] | None = None,
) -> None:
    """Fail unless `|actual - expected| <= atol + rtol * |expected|` everywhere, in tensors, numbers and containers.

    Args:
        actual: tensor, number, array, or sequence or mapping of these.
        expected: the same structure.
        rtol: with `atol`; both default to values for the data type.
        atol: with `rtol`.
        equal_nan: NaN equals NaN.
        check_dtype: data types must be equal; otherwise both are compared in the wider one.
        msg: replaces the message, or makes it from torch's.

    Raises:
        AssertionError: something differs.
        ValueError: only one of `rtol` and `atol` is given.
        TypeError: values that cannot be compared.
    """
    if (rtol is None) != (atol is None):
        raise ValueError("rtol and atol must both be specified or both be unspecified")
    try:
        _compare(actual, expected, "", (rtol, atol), equal_nan, check_dtype)
    except AssertionError as error:
        if msg is None:
            raise
        raise AssertionError(msg(str(error)) if callable(msg) else msg) from None


def _compare(
    actual: Any, expected: Any, where: str, tolerance: tuple[Any, Any], equal_nan: bool, check_dtype: bool
) -> None:
    if isinstance(actual, Mapping) and isinstance(expected, Mapping):
        if set(actual) != set(expected):
            raise AssertionError(f"The keys of the mappings do not match{where}: {list(actual)} and {list(expected)}")
        for key in expected:
            _compare(actual[key], expected[key], f"{where}[{key!r}]", tolerance, equal_nan, check_dtype)
    elif _is_sequence(actual) and _is_sequence(expected):
        if len(actual) != len(expected):
            raise AssertionError(f"The length of the sequences mismatch{where}: {len(actual)} != {len(expected)}")
        for i, pair in enumerate(zip(actual, expected, strict=True)):
            _compare(*pair, f"{where}[{i}]", tolerance, equal_nan, check_dtype)
    elif actual is None and expected is None:
        return
    elif isinstance(actual, _NUMBERS) and isinstance(expected, _NUMBERS):
        if check_dtype and type(actual) is not type(expected):
            raise AssertionError(f"The (d)types do not match{where}: {type(actual)} != {type(expected)}")
        kinds = [ms.float64 if isinstance(v, float | complex | np.inexact) else ms.int64 for v in (actual, expected)]
        _values(np.asarray(actual), np.asarray(expected), where, _tolerance(tolerance, *kinds), equal_nan)
    elif (isinstance(actual, Tensor) and isinstance(expected, Tensor)) or (
        isinstance(actual, np.ndarray) and isinstance(expected, np.ndarray)
    ):
        _tensors(_tensor(actual), _tensor(expected), where, tolerance, equal_nan, check_dtype)
    else:
        raise TypeError(
            f"No comparison pair was able to handle inputs{where} of type {type(actual)} and {type(expected)}"
        )


def _is_sequence(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _tensor(value: Any) -> Tensor:
    return value if isinstance(value, Tensor) else Tensor(value)


def _tensors(
    actual: Tensor, expected: Tensor, where: str, tolerance: tuple[Any, Any], equal_nan: bool, check_dtype: bool
) -> None:
    if tuple(actual.shape) != tuple(expected.shape):
        raise AssertionError(
            f"The values for attribute 'shape' do not match{where}: {tuple(actual.shape)} != {tuple(expected.shape)}"
        )
    if check_dtype and actual.dtype != expected.dtype:
        raise AssertionError(
            f"The values for attribute 'dtype' do not match{where}: {actual.dtype} != {expected.dtype}"
        )
    limits = _tolerance(tolerance, actual.dtype, expected.dtype)
    _values(_array(actual), _array(expected), where, limits, equal_nan)


def _array(tensor: Tensor) -> np.ndarray[Any, Any]:
    return (tensor.astype(ms.float32) if tensor.dtype == ms.bfloat16 else tensor).asnumpy()


def _tolerance(given: tuple[Any, Any], *dtypes: Any) -> tuple[float, float]:
    if given[0] is not None:
        return float(given[0]), float(given[1])
    found = [_TOLERANCES.get(dtype, (0.0, 0.0)) for dtype in dtypes]
    return max(rtol for rtol, _ in found), max(atol for _, atol in found)


def _values(
    actual: np.ndarray[Any, Any],
    expected: np.ndarray[Any, Any],
    where: str,
    limits: tuple[float, float],
    equal_nan: bool,
) -> None:
    rtol, atol = limits
    if rtol == 0.0 and atol == 0.0 and actual.dtype.kind in "iub" and expected.dtype.kind in "iub":
        wrong = actual != expected  # exact also for integers that double precision cannot hold
    else:
        wide = np.complex128 if "c" in (actual.dtype.kind, expected.dtype.kind) else np.float64
        wrong = ~np.isclose(actual.astype(wide), expected.astype(wide), rtol=rtol, atol=atol, equal_nan=equal_nan)
    if np.any(wrong):
        wide = np.complex128 if "c" in (actual.dtype.kind, expected.dtype.kind) else np.float64
        gap = np.abs(actual.astype(wide) - expected.astype(wide))
        raise AssertionError(
            f"Tensor-likes are not close{where}!\n\nMismatched elements: {int(np.sum(wrong))} / {wrong.size}\n"
            f"Greatest absolute difference: {float(np.max(gap))} (up to {atol} allowed)\n"
            f"Relative tolerance: {rtol}"
        )


def assert_allclose(
    actual: Any,
    expected: Any,
    rtol: float | None = None,
    atol: float | None = None,
    equal_nan: bool = True,
    msg: str = "",
) -> None:
    """The older `assert_close`: data types may differ, NaN equals NaN, and what is no tensor becomes one."""
    wanted = expected if isinstance(expected, Tensor) else Tensor(expected)
    given = actual if isinstance(actual, Tensor) else Tensor(np.asarray(actual), wanted.dtype)
    assert_close(given, wanted, rtol=rtol, atol=atol, equal_nan=equal_nan, check_dtype=False, msg=msg or None)
