"""Tensors put together from the pieces of several ranks."""

from __future__ import annotations

import numpy as np
import pytest

from mappings.arrangement import Arrangement
from mappings.assembly import Assembly, ReplicasDifferError, needs

WHOLE = Arrangement.of("w", (5, 4))
VALUES = np.arange(1, 21, dtype=np.float32).reshape(5, 4)


def rows(first: int, last: int) -> tuple[np.ndarray, Arrangement]:
    return np.ascontiguousarray(VALUES[first:last]), WHOLE.slice(0, first, last)


def test_pieces_and_copies_of_them_make_the_whole() -> None:
    found = Assembly(np.zeros((5, 4), np.float32), WHOLE)
    found.add(*rows(0, 2))
    assert found.missing == 12
    found.add(*rows(2, 5))
    found.add(*rows(0, 2))
    assert found.missing == 0
    assert np.array_equal(found.target, VALUES)


def test_padding_is_not_missing_and_stays_zero() -> None:
    held = WHOLE.pad(0, 6).slice(0, 3, 6)
    found = Assembly(np.zeros((3, 4), np.float32), held)
    found.add(*rows(2, 5))
    assert found.missing == 0
    assert np.array_equal(found.target, np.concatenate([VALUES[3:], np.zeros((1, 4), np.float32)]))


@pytest.mark.parametrize("wrong", [0.5, np.nan, -0.0])
def test_copies_that_differ_in_a_bit_are_found(wrong: float) -> None:
    values, piece = rows(0, 2)
    values = values.copy()
    values[1, 1] = 0.0
    found = Assembly(np.zeros((5, 4), np.float32), WHOLE)
    found.add(values, piece)
    found.add(values.copy(), piece)
    other = values.copy()
    other[1, 1] = wrong
    with pytest.raises(ReplicasDifferError):
        found.add(other, piece)


def test_pieces_that_overlap_in_part_are_no_copies() -> None:
    found = Assembly(np.zeros((5, 4), np.float32), WHOLE)
    found.add(*rows(0, 3))
    found.add(*rows(2, 5))
    assert found.missing < 0


def test_a_file_without_a_piece_is_not_needed() -> None:
    assert needs([rows(0, 2)[1]], {"w": rows(1, 3)[1]})
    assert not needs([rows(0, 2)[1]], {"w": rows(2, 5)[1], "v": Arrangement.of("v", (3,))})
