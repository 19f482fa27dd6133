"""Loaders and samplers: the orders of torch where they are fixed, its guarantees where they are random."""

from __future__ import annotations

from typing import Any

import mindspore as ms
import numpy as np
import pytest
import torch.utils.data as torch_data

from ms_models.compat import data, samplers
from ms_models.compat.random import Generator, manual_seed


class Numbers:
    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        if not 0 <= index < self.count:
            raise IndexError(index)
        return index * 10


def numbers(loader: Any) -> list[list[int]]:
    return [batch.tolist() for batch in loader]


@pytest.mark.parametrize("options", [{}, {"batch_size": 3}, {"batch_size": 3, "drop_last": True}, {"batch_size": 10}])
@pytest.mark.parametrize("count", [0, 1, 7, 9])
def test_fixed_order_and_length(count: int, options: dict[str, Any]) -> None:
    ours, theirs = data.DataLoader(Numbers(count), **options), torch_data.DataLoader(Numbers(count), **options)
    assert len(ours) == len(theirs) and numbers(ours) == numbers(theirs)


def test_sampler_and_batch_sampler() -> None:
    for module, sampler in ((data, samplers), (torch_data, torch_data)):
        order = sampler.BatchSampler([5, 2, 2, 0], 3, drop_last=False)
        assert numbers(module.DataLoader(Numbers(6), batch_sampler=order)) == [[50, 20, 20], [0]]
        assert numbers(module.DataLoader(Numbers(6), batch_size=2, sampler=[4, 1])) == [[40, 10]]


def test_shuffle_is_a_new_permutation_each_pass_and_follows_the_seed() -> None:
    def passes() -> list[list[list[int]]]:
        loader = data.DataLoader(Numbers(50), batch_size=8, shuffle=True, generator=Generator().manual_seed(3))
        return [numbers(loader), numbers(loader)]

    first, second = passes()
    assert sorted(n for part in first for n in part) == [n * 10 for n in range(50)]
    assert first != second and first != sorted(first)
    assert passes() == [first, second]
    manual_seed(1)
    a = numbers(data.DataLoader(Numbers(50), shuffle=True))
    manual_seed(1)
    assert a == numbers(data.DataLoader(Numbers(50), shuffle=True))


def test_contradicting_options_are_refused() -> None:
    for options in (
        {"shuffle": True, "sampler": [1]},
        {"batch_sampler": [[1]], "batch_size": 2},
        {"batch_sampler": [[1]], "shuffle": True},
    ):
        with pytest.raises(ValueError, match=r".+"):
            data.DataLoader(Numbers(4), **options)


def test_collate_types() -> None:
    batch = [{"x": np.ones(2, np.float32), "n": 1, "f": 1.5, "b": True, "s": "a", "t": ms.Tensor([1, 2])}] * 2
    found = data.default_collate(batch)
    assert [found[k].dtype for k in "xnfbt"] == [ms.float32, ms.int64, ms.float64, ms.bool_, ms.int64]
    assert found["x"].shape == (2, 2) and found["s"] == ["a", "a"]
    with pytest.raises(TypeError, match="object"):
        data.default_collate([object()])


def test_distributed_shares_cover_the_data() -> None:
    shares = [list(samplers.DistributedSampler(Numbers(10), 3, rank, shuffle=True, seed=2)) for rank in range(3)]
    assert len({len(s) for s in shares}) == 1 and {n for share in shares for n in share} == set(range(10))
    later = samplers.DistributedSampler(Numbers(10), 3, 0, seed=2)
    later.set_epoch(1)
    assert list(later) != shares[0]
