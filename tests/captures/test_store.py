"""Captures on disk keep every array as it is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from migrate.captures.store import Capture, CaptureWriter


@pytest.mark.parametrize(
    "values", [np.array(np.float32(1.5)), np.zeros((0, 3)), np.arange(6, dtype=np.int32).reshape(2, 3).T]
)
def test_shape_type_and_values_come_back(tmp_path: Path, values: np.ndarray) -> None:
    writer = CaptureWriter(tmp_path, {})
    with writer.stage("weights") as tensors:
        tensors["a"] = values
    with Capture.read(tmp_path).reader("weights") as get:
        found = get("a")
    assert (found.shape, found.dtype) == (values.shape, values.dtype)  # a number has no axes, not one of length 1
    assert np.array_equal(found, values)
