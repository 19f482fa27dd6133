"""Faults for a while: what a test plants to see that a comparison notices."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def planted(owner: Any, name: str, fault: Any) -> Iterator[None]:
    """Replaces an attribute for the time of the block."""
    right = getattr(owner, name)
    setattr(owner, name, fault)
    try:
        yield
    finally:
        setattr(owner, name, right)
