"""Dropout that follows from the sample: its numbers bit for bit, how random they are, and when it does nothing."""

from __future__ import annotations

import mindspore as ms
import numpy as np
import pytest
import reference_dropout

from ms_models.layers.dropout import Dropout, sample_seeds

ms.runtime.launch_blocking()

IDS = np.random.default_rng(0).integers(0, 1000, (3, 7)).astype(np.int32)
SHAPES = [(3, 7, 48), (3, 4, 7, 11)]


@pytest.mark.parametrize("kind", [np.int32, np.int64])
def test_seeds_are_those_of_the_second_implementation(kind: type) -> None:
    found = sample_seeds(ms.Tensor(IDS.astype(kind))).asnumpy()
    assert found.dtype == np.int32
    assert np.array_equal(found.view(np.uint32), reference_dropout.sample_seeds(IDS))
    swapped = IDS[:, [1, 0, *range(2, 7)]]
    assert not (reference_dropout.sample_seeds(swapped) == reference_dropout.sample_seeds(IDS)).any()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_values_are_dropped_as_the_second_implementation_does(shape: tuple[int, ...], rate: float) -> None:
    layer = Dropout(rate, 5).set_train()
    x = ms.Tensor(np.random.default_rng(1).standard_normal(shape).astype(np.float32))
    seeds = sample_seeds(ms.Tensor(IDS))
    found = layer(x, seeds).asnumpy()
    keep = reference_dropout.keep(shape, reference_dropout.sample_seeds(IDS), 5, rate)
    assert np.allclose(found, np.where(keep, x.asnumpy() / (1 - rate), 0), rtol=1e-6, atol=0)
    assert 0 < keep.mean() < 1
    gradient = ms.grad(lambda x: layer(x, seeds).sum())(x).asnumpy()
    assert np.allclose(gradient, keep / (1 - rate), rtol=1e-6, atol=0)


@pytest.mark.parametrize("shape", SHAPES)
def test_parts_of_a_tensor_drop_what_the_whole_does(shape: tuple[int, ...]) -> None:
    even = (shape[0], 4, *shape[2:])
    x, seeds = ms.ops.ones(even), sample_seeds(ms.Tensor(IDS))
    whole = Dropout(0.4, 2).set_train()(x, seeds).asnumpy()
    parts = [Dropout(0.4, 2, part).set_train()(x[:, :2], seeds).asnumpy() for part in range(2)]
    assert np.array_equal(np.concatenate(parts, 1), whole)
    assert not np.array_equal(parts[0], parts[1])


def test_nothing_is_dropped_outside_of_training_or_at_rate_zero() -> None:
    x, seeds = ms.ops.ones(SHAPES[0]), sample_seeds(ms.Tensor(IDS))
    assert (Dropout(0.4, 0).set_train(False)(x, seeds).asnumpy() == 1).all()
    assert (Dropout(0.0, 0).set_train()(x, seeds).asnumpy() == 1).all()
    with pytest.raises(AssertionError, match="dropout of 1"):
        Dropout(1, 0)


def centred(keep: np.ndarray, rate: float) -> np.ndarray:
    return (keep - (1 - rate)) / np.sqrt(rate * (1 - rate))


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_values_are_dropped_independently(rate: float) -> None:
    """Rows, columns and blocks of 1024 x 1024 values are no more alike than those of coins."""
    size = 1024
    keep = reference_dropout.keep((1, size, size), np.array([12345], np.uint32), 3, rate)[0]
    values = centred(keep, rate)
    assert abs(values.mean()) * size < 5  # standard deviations, here and below
    for table in (values, values.T):
        sums = table.sum(0) / np.sqrt(size)
        assert sums.std() == pytest.approx(1, abs=0.1) and np.abs(sums).max() < 5.5
        pairs = (table.T @ table / np.sqrt(size))[~np.eye(size, dtype=bool)]
        assert pairs.std() == pytest.approx(1, abs=0.01)
        # the largest of half a million, with the heavy tail of rare drops
        assert np.abs(pairs).max() < 8
    blocks = values[:-1, :-1] * values[1:, :-1] * values[:-1, 1:] * values[1:, 1:]
    assert abs(blocks.sum()) / size < 5
    # Marchenko and Pastur: the largest singular value of independent entries tends to 2; a pattern shows as more.
    assert np.linalg.norm(values / np.sqrt(size), 2) == pytest.approx(2, abs=0.08)


def test_samples_and_sites_drop_other_values() -> None:
    ids = np.arange(1000).reshape(50, 20)
    ids[1] = ids[0]
    ids[1, 7] += 1  # one token differs
    seeds = reference_dropout.sample_seeds(ids)
    assert len(set(seeds.tolist())) == 50
    sites = np.stack([reference_dropout.keep((50, 8, 40), seeds, site, 0.3) for site in range(20)])
    flat = centred(sites, 0.3).reshape(1000, 320)
    likeness = (flat @ flat.T / np.sqrt(320))[~np.eye(1000, dtype=bool)]
    assert likeness.std() == pytest.approx(1, abs=0.02) and np.abs(likeness).max() < 6.5
