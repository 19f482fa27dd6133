"""Element-wise comparison: what must never count as equal, and the figures it gives."""

from __future__ import annotations

import numpy as np
import pytest

from migrate.captures.compare import compare
from migrate.parity.inputs import IGNORED, LENGTH, make_batch, valid_labels

ONES = np.ones((2, 3), np.float32)


def with_value(value: float, index: tuple[int, int] = (1, 2)) -> np.ndarray:
    array = ONES.copy()
    array[index] = value
    return array


def test_equal_arrays_are_equal() -> None:
    result = compare("x", ONES, ONES.copy())
    assert (result.relative, result.element, result.differing, result.problem) == (0.0, 0.0, 0, None)
    assert result.elements == 6


def test_figures_of_one_wrong_element() -> None:
    result = compare("x", 2 * ONES, 2 * with_value(1.5))
    assert result.relative == pytest.approx(1.0 / np.sqrt(24))  # |3 - 2| over the norm of six twos
    assert result.element == pytest.approx(0.5)  # 1 over the RMS of 2
    assert (result.worst, result.reference, result.candidate, result.differing) == ((1, 2), 2.0, 3.0, 1)
    assert result.where() == "worst element [1][2]: reference 2, candidate 3"


def test_a_permutation_is_seen() -> None:
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    result = compare("x", array, array[::-1])  # same mean, norm, minimum and maximum
    assert result.relative > 0.5


def test_the_last_bit_and_the_sign_of_zero_are_seen() -> None:
    assert compare("x", ONES, with_value(np.nextafter(np.float32(1), np.float32(2)))).differing == 1
    zero = compare("x", with_value(0.0), with_value(-0.0))
    assert (zero.relative, zero.differing) == (0.0, 1)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_equal_nothing(value: float) -> None:
    for left, right in ((with_value(value), with_value(value)), (ONES, with_value(value)), (with_value(value), ONES)):
        result = compare("x", left, right)
        assert result.problem is not None and "NaN or infinite" in result.problem
        assert not result.relative <= 1e30
        assert result.worst == (1, 2)


def test_shape_and_dtype_must_agree() -> None:
    for other in (ONES.T, ONES[:1], ONES.reshape(6), ONES.astype(np.float64)):
        result = compare("x", ONES, other)
        assert result.problem is not None and result.elements == 0


def test_nothing_is_no_agreement() -> None:
    assert compare("x", ONES[:0], ONES[:0]).problem is not None
    assert compare("x", ONES, ONES, mask=np.zeros(2)).problem is not None


def test_zeros_are_told_apart() -> None:
    assert compare("x", 0 * ONES, 0 * ONES).zeros
    assert compare("x", 0 * ONES, ONES).relative == np.inf
    silent = compare("x", ONES, 0 * ONES)
    assert silent.silent and silent.relative == pytest.approx(1.0)


def test_masked_positions_do_not_count() -> None:
    mask = np.array([1, 0])
    left, right = with_value(np.nan), with_value(7.0)
    result = compare("x", left, right, mask)
    assert (result.relative, result.elements, result.problem) == (0.0, 3, None)
    inside = compare("x", ONES, with_value(7.0, (0, 1)), mask)
    assert inside.worst == (0, 1)
    assert compare("x", ONES, ONES, np.ones(3)).problem is not None  # not the batch's axis


def test_the_batch_is_padded_on_both_sides_with_unequal_rows() -> None:
    config = {"vocab_size": 50, "max_position_embeddings": 4096, "pad_token_id": 7}
    batch = make_batch(config, seed=3)
    ids, mask, labels = batch["input_ids"], batch["attention_mask"], batch["labels"]
    assert ids.shape == (3, LENGTH)
    assert mask[0].all() and mask[1, 0] and not mask[1, -1] and not mask[2, 0] and mask[2, -1]
    assert (ids[mask == 0] == 7).all() and ids[0, 1] == 7
    assert ids.min() >= 0 and ids.max() < 50
    assert (labels[mask == 0] == IGNORED).all()
    first = int(mask[2].argmax())
    assert labels[2, first] == IGNORED  # its logits come from a padded position
    used = labels != IGNORED
    assert (labels[used] == ids[used]).all()
    assert len({int(row.sum()) for row in used}) == 3
    assert valid_labels(batch) == used[:, 1:].sum() > 30


def test_the_batch_depends_on_the_seed_alone_and_keeps_to_the_positions() -> None:
    config = {"vocab_size": 50, "max_position_embeddings": 16}
    first, again, other = make_batch(config, 0), make_batch(config, 0), make_batch(config, 1)
    assert all((first[name] == again[name]).all() for name in first)
    assert (first["input_ids"] != other["input_ids"]).any()
    assert first["input_ids"].shape[1] == 16
