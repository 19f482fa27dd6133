"""Python's garbage collector, which finds nothing in syntax trees and looks at all their nodes again and again."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused() -> Iterator[None]:
    """Stops the search for cycles: a fifth of the time of a conversion. What nobody refers to is freed as ever."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


__all__ = ["paused"]
