"""What no test may leave behind for those that follow it in its process."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest

# MindSpore reads it once, but every process that a test starts reads it again, and speaks about it.
RUNTIME = "MS_DEV_RUNTIME_CONF"
TAPE = "ms_models.compat.tape"
CONVERTED = ("tests/ms_models/compat/", "tests/code/", "tests/mappings/")
"""Tests of what converted code does."""


@pytest.fixture(autouse=True)
def settings_of_mindspore() -> Iterator[None]:
    """The runner sets some for its process."""
    before = os.environ.get(RUNTIME)
    yield
    if before is None:
        os.environ.pop(RUNTIME, None)
    else:
        os.environ[RUNTIME] = before


@pytest.fixture(autouse=True, scope="module")
def recording_of_gradients(request: pytest.FixtureRequest) -> None:
    """Importing the tape switches recording on, as converted code wants it; all test files are imported at first."""
    if TAPE in sys.modules:
        from mindspore.graph.api import _pynative_executor

        _pynative_executor.set_grad_flag(request.node.nodeid.startswith(CONVERTED))
