"""Launches that several test files share."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness import Launch, launch


@pytest.fixture(scope="session")
def four_ranks(tmp_path_factory: pytest.TempPathFactory) -> Launch:
    """What four ranks report about collectives and context parallelism."""
    worker = Path(__file__).with_name("four_ranks_worker.py")
    result = launch(worker, 4, tmp_path_factory.mktemp("four"), timeout=300)
    result.check(4)
    return result
