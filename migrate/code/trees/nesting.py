"""Deeply nested source: what a person writes is converted, what no stack can hold is left out and the rest goes on."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import libcst as cst

from migrate.code.trees.walk import children

FRAMES = 10_000
"""A sum of a thousand terms is nested a thousand deep, and the passes need a few frames for each level."""
DEEPEST = 2000
"""Levels that are left out when these frames were not enough. Python itself compiles about as many."""


@contextmanager
def deep_recursion() -> Iterator[None]:
    """More frames than Python allows by default."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, FRAMES))
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


def depth(tree: cst.CSTNode) -> int:
    """Levels of the most nested part of a tree, without recursion."""
    deepest, pending = 0, [(tree, 1)]
    while pending:
        node, level = pending.pop()
        deepest = max(deepest, level)
        pending += [(child, level + 1) for child in children(node)]
    return deepest
