"""What no test may leave behind for those that follow it in its process."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest

# MindSpore reads it once, but every process that a test starts reads it again, and speaks about it.
RUNTIME = "MS_DEV_RUNTIME_CONF"
TAPE = "ms_models.compat.tape"


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
    """Importing the tape switches recording on, for all files, since all are imported at first; few of them want it."""
    if TAPE in sys.modules:
        from mindspore.graph.api import _pynative_executor

        _pynative_executor.set_grad_flag("tape" in request.path.read_text(encoding="utf-8"))
