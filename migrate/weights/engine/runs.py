"""What lies side by side in strided regions, and copying it inside the kernel."""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Iterator, Sequence
from itertools import product

from migrate.weights.engine.copy_item import Side

# What copy_file_range answers where it cannot serve; any other error is a real one.
NOT_SERVED = {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM}


def kernel_copy(source: int, target: int, count: int, read_at: int, write_at: int) -> int:
    """Bytes copied inside the kernel; 0 where the file systems do not offer it."""
    try:
        return os.copy_file_range(source, target, count, read_at, write_at)
    except OSError as error:
        if error.errno in NOT_SERVED:
            return 0
        raise


def runs(source: Side, target: Side) -> Iterator[tuple[int, int, int]]:
    """(first in the source, first in the target, elements) of what lies side by side in both."""
    inner = source.steps[-1:] == (1,) == target.steps[-1:]
    count = source.extent[-1] if inner else 1
    outer = len(source.extent) - inner
    for index in product(*map(range, source.extent[:outer])):
        read = sum([i * step for i, step in zip(index, source.steps, strict=False)])
        write = sum([i * step for i, step in zip(index, target.steps, strict=False)])
        yield source.at + read, target.at + write, count


def stretches(side: Side, order: Sequence[int]) -> Iterator[tuple[int, int]]:
    """(first element, count) of what lies side by side, axes from the outer to the inner one."""
    extent, steps = [side.extent[axis] for axis in order], [side.steps[axis] for axis in order]
    count = 1
    while extent and steps[-1] == count:  # this axis continues the run
        count *= extent.pop()
        steps.pop()
    if not math.prod(extent):
        return
    for index in product(*map(range, extent)):
        yield side.at + sum([i * step for i, step in zip(index, steps, strict=True)]), count
