"""One order of axes for what both frameworks return."""

from __future__ import annotations

import numpy as np
import pytest

from migrate.parity.axes import by_token

BATCH, LENGTH, WIDTH = 3, 5, 4
WANTED = np.arange(BATCH * LENGTH * WIDTH, dtype=np.float32).reshape(BATCH, LENGTH, WIDTH)
HEADS = np.arange(BATCH * LENGTH * 2 * WIDTH, dtype=np.float32).reshape(BATCH, LENGTH, 2, WIDTH)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (WANTED, WANTED),
        (WANTED.reshape(-1, WIDTH), WANTED),
        (WANTED[:, None], WANTED),
        (WANTED[:, :, None], WANTED),
        (WANTED[:1], np.repeat(WANTED[:1], BATCH, 0)),
        (HEADS, HEADS),
        (HEADS.swapaxes(1, 2), HEADS),
        (WANTED[:, 1:], WANTED[:, 1:]),
    ],
)
def test_tokens_come_first(given: np.ndarray, wanted: np.ndarray) -> None:
    found = by_token(given, BATCH, LENGTH)
    assert np.array_equal(found, wanted)
    assert np.array_equal(by_token(found, BATCH, LENGTH), found)
