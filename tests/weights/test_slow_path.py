"""The slow path rounds as torch does: it is a second opinion on the engine's casts, so it is tested by itself."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from migrate.weights.slow_path import converted

DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


@pytest.mark.parametrize("before", DTYPES)
@pytest.mark.parametrize("after", DTYPES)
def test_casts_are_those_of_torch(before: str, after: str) -> None:
    generator = np.random.default_rng(0)
    numbers = np.concatenate(
        [
            generator.standard_normal(20_000) * 10.0 ** generator.integers(-44, 38, 20_000),
            [0.0, -0.0, np.inf, -np.inf, 1 + 2.0**-11 + 2.0**-40, 1 + 2.0**-8 + 2.0**-40, 65520.0, 3.4e38, 1e300],
        ]
    )
    stored = torch.from_numpy(numbers).to(DTYPES[before])
    raw = stored.view(torch.uint8).numpy().reshape(len(numbers), -1)
    wanted = stored.to(DTYPES[after]).view(torch.uint8).numpy().reshape(len(numbers), -1)
    assert np.array_equal(converted(raw, before, after), wanted)
