"""Statistics of stored tensors against numpy and torch on the whole tensor."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from mappings.errors import UserError
from migrate.weights import statistics as module
from migrate.weights.statistics import Statistics, statistics

DTYPES = {
    "F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64, "I8": torch.int8,
    "I16": torch.int16, "I32": torch.int32, "U8": torch.uint8, "BOOL": torch.bool, "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}  # fmt: skip


def stored(path: Path, tensor: torch.Tensor, before: int = 5) -> tuple[int, int]:
    raw = tensor.contiguous().view(torch.uint8).numpy().tobytes()
    path.write_bytes(bytes(before) + raw)
    return before, len(raw)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("chunk", [64, 8 << 20])
def test_every_dtype_in_small_and_large_blocks(
    tmp_path: Path, dtype: str, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHUNK", chunk)
    numbers = torch.randn(37, 11, generator=torch.Generator().manual_seed(1)) * 20 + 3
    numbers[3, 4] = 0
    tensor = (numbers > 3) if dtype == "BOOL" else numbers.clamp(0, 100).to(DTYPES[dtype])
    if dtype.startswith(("F", "B")) and dtype != "BOOL":
        tensor[1, 1], tensor[2, 2] = float("nan"), float("inf") if dtype != "F8_E4M3" else 1.0
    offset, nbytes = stored(tmp_path / "t", tensor)
    found = statistics(tmp_path / "t", dtype, [(offset, nbytes)], "t")
    assert found is not None
    whole = tensor.double().numpy()
    finite = whole[np.isfinite(whole)]
    assert (found.elements, found.nan, found.inf) == (whole.size, np.isnan(whole).sum(), np.isinf(whole).sum())
    assert (found.zeros, found.minimum, found.maximum) == ((finite == 0).sum(), finite.min(), finite.max())
    # fp64 sums of 400 numbers in another order
    assert found.mean == pytest.approx(finite.mean(), rel=1e-12)
    assert found.deviation == pytest.approx(finite.std(), rel=1e-12)
    powers = np.floor(np.log2(np.abs(finite[finite != 0])))
    assert found.magnitudes == {int(p): int((powers == p).sum()) for p in np.unique(powers)}


def test_subnormal_numbers(tmp_path: Path) -> None:
    numbers = torch.tensor([5e-324, 3e-310, 1e-300, 2.0**-1022, -(2.0**-1023)], dtype=torch.float64)
    offset, nbytes = stored(tmp_path / "t", numbers)
    found = statistics(tmp_path / "t", "F64", [(offset, 16), (offset + 16, nbytes - 16)], "t")
    powers = (np.frexp(numbers.numpy())[1] - 1).tolist()
    assert found is not None and found.magnitudes == {p: powers.count(p) for p in powers}


def test_packed_and_complex_numbers_are_not_counted(tmp_path: Path) -> None:
    (tmp_path / "t").write_bytes(bytes(8))
    assert statistics(tmp_path / "t", "F4", [(0, 8)], "t") is None
    assert statistics(tmp_path / "t", "C64", [(0, 8)], "t") is None


def test_a_file_that_became_shorter(tmp_path: Path) -> None:
    (tmp_path / "t").write_bytes(bytes(6))
    with pytest.raises(UserError, match="'t': ends 4 bytes early"):
        statistics(tmp_path / "t", "F32", [(0, 8)], "t")


def test_bars() -> None:
    assert Statistics(magnitudes={-3: 10, -1: 5, 0: 1}).bars() == "2^-3 @ +. 2^1"
    assert Statistics(magnitudes=dict.fromkeys(range(-32, 32), 7)).bars(16) == f"2^-32 {'@' * 16} 2^32"
    assert Statistics().bars() == ""
