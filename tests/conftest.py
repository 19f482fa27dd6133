"""How the tests are shared out over processes (`pytest -n 2 --dist loadgroup`)."""

from __future__ import annotations

import pytest

LAUNCHES = "tests/multi_process/"


def pytest_itemcollected(item: pytest.Item) -> None:
    """A file's tests stay together, for its fixtures; so do all that start ranks, which would starve each other."""
    file = item.nodeid.partition("::")[0]
    item.add_marker(pytest.mark.xdist_group(LAUNCHES if file.startswith(LAUNCHES) else file))
