"""Orders and shares of batches of ms_models/compat against torch's and accelerate's."""

from __future__ import annotations

import pytest
import torch
from accelerate.data_loader import BatchSamplerShard, SeedableRandomSampler
from transformers.trainer_pt_utils import get_length_grouped_indices

from ms_models.compat.batch_shards import BatchShard, skip_first_batches
from ms_models.compat.data import DataLoader
from ms_models.compat.samplers import BatchSampler
from ms_models.compat.seeded_order import LengthGroupedSampler, SeededRandomSampler, permutation


@pytest.mark.parametrize("seed", [0, 42, 2**31 + 5, 2**40 + 7])
@pytest.mark.parametrize("count", [0, 1, 2, 13, 1000])
def test_permutations_are_those_of_torch(seed: int, count: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    assert permutation(count, seed) == torch.randperm(count, generator=generator).tolist()


def test_epochs_are_those_of_accelerate() -> None:
    data = list(range(11))
    theirs, ours = SeedableRandomSampler(data, data_seed=7), SeededRandomSampler(data, 7)
    for _ in range(3):
        assert list(ours) == list(theirs)
    ours.set_epoch(1)
    theirs.set_epoch(1)
    assert list(ours) == list(theirs)


def test_length_groups_are_those_of_transformers() -> None:
    lengths = [(7 * n) % 23 for n in range(50)]
    expected = get_length_grouped_indices(lengths, 3, generator=torch.Generator().manual_seed(5))
    assert list(LengthGroupedSampler(lengths, 3, 5)) == expected


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("count", [1, 5, 12, 13, 16, 23])
def test_shares_of_batches_are_those_of_accelerate(count: int, ranks: int, drop_last: bool) -> None:
    for rank in range(ranks):
        batches = torch.utils.data.BatchSampler(range(count), 4, drop_last)
        expected = BatchSamplerShard(batches, ranks, rank)
        ours = BatchShard(BatchSampler(range(count), 4, drop_last), ranks, rank)
        assert list(ours) == list(expected)
        assert len(ours) == len(expected) == len(list(ours))


def test_skipped_batches_are_not_read() -> None:
    class Data:
        def __init__(self) -> None:
            self.read: list[int] = []

        def __len__(self) -> int:
            return 7

        def __getitem__(self, number: int) -> int:
            self.read.append(number)
            return number

    data = Data()
    rest = skip_first_batches(DataLoader(data, batch_size=2), 2)
    assert [batch.asnumpy().tolist() for batch in rest] == [[4, 5], [6]]
    assert data.read == [4, 5, 6]
    assert list(skip_first_batches(iter("abcd"), 3)) == ["d"]
