"""Units of copying: copies whose ranges interleave in a source or in a target, so that they are made together.

Slices of columns of one matrix, two projections whose rows alternate, the transposed halves of one expert: each is one
unit, read once and written once. Copies of whole ranges stand alone.
"""

from __future__ import annotations

import numpy as np

from migrate.weights.engine.boxes import Ints


def unit_numbers(source: Ints, read: Ints, read_stop: Ints, target: Ints, write: Ints, write_stop: Ints) -> Ints:
    """For each copy the number of its unit; numbers have no order."""
    left = _interleaved(source, read, read_stop)
    right = _interleaved(target, write, write_stop)
    return _connected(left, right)


def _interleaved(tensor: Ints, start: Ints, stop: Ints) -> Ints:
    """Group numbers of ranges that overlap, directly or through others."""
    order = np.lexsort((start, tensor))
    start, stop, tensor = start[order], stop[order], tensor[order]
    shift = tensor * (int(stop.max(initial=0)) + 1)  # one line on which the tensors lie apart
    reach = np.maximum.accumulate(stop + shift)
    new = np.ones(len(order), np.int64)
    new[1:] = start[1:] + shift[1:] >= reach[:-1]
    groups = np.empty_like(new)
    groups[order] = np.cumsum(new) - 1
    return groups


def _connected(left: Ints, right: Ints) -> Ints:
    """Components of the graph in which each copy joins a left and a right group, by the least label that reaches it."""
    label = np.arange(int(left.max(initial=-1)) + 1)
    while True:
        of_right = np.full(int(right.max(initial=-1)) + 1, len(label))
        np.minimum.at(of_right, right, label[left])
        lower = label.copy()
        np.minimum.at(lower, left, of_right[right])
        lower = lower[lower]
        if np.array_equal(lower, label):
            return label[left]
        label = lower
