"""Rank order, groups and owners of a `ParallelLayout`."""

from __future__ import annotations

import itertools

import pytest

from mappings.errors import UserError
from mappings.layout import ParallelLayout

LAYOUTS = [
    ParallelLayout(tp=t, cp=c, dp=d, pp=p) for t, c, d, p in itertools.product((1, 2, 3), (1, 2), (1, 2), (1, 2))
]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_coordinates_and_rank_are_inverse_with_tp_fastest(layout):
    order = itertools.product(range(layout.pp), range(layout.dp), range(layout.cp), range(layout.tp))
    for rank, (pp, dp, cp, tp) in enumerate(order):
        assert layout.coordinates(rank) == {"tp": tp, "cp": cp, "dp": dp, "pp": pp}
        assert layout.rank(tp=tp, cp=cp, dp=dp, pp=pp) == rank
    assert rank + 1 == layout.world_size


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("axes", [("tp",), ("dp", "cp"), ("pp",)])
def test_groups_divide_the_world(layout, axes):
    groups = {tuple(layout.group(rank, *axes)) for rank in range(layout.world_size)}
    assert sorted(rank for group in groups for rank in group) == list(range(layout.world_size))
    for group in groups:
        fixed = [{k: v for k, v in layout.coordinates(rank).items() if k not in axes} for rank in group]
        assert all(position == fixed[0] for position in fixed)


def test_owner_is_the_first_replica():
    layout = ParallelLayout(tp=2, dp=2, cp=2)
    assert [layout.weight_owner(rank) for rank in range(8)] == [0, 1] * 4
    assert [ParallelLayout(tp=1, dp=1, pp=2).weight_owner(rank) for rank in range(2)] == [0, 1]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"tp": 0}, "tp must be at least 1"),
        ({"tp": 1 << 10, "dp": 1 << 40}, r"ranks, at most 131072 are supported"),
        ({"tp": True}, "whole number"),
        ({"dp": 2.0}, "whole number"),
        ({"zero": 4}, "zero must be one of"),
        ({"zero": -1}, "zero"),
        ({"vpp": 2}, "needs pp"),
        ({"dp": 2, "ep": 4}, "does not divide"),
        ({"tpp": 2}, "did you mean 'tp'"),
        ({"quux": 2}, "known are"),
    ],
)
def test_bad_layout_is_refused(values, words):
    with pytest.raises(UserError, match=words):
        ParallelLayout.from_dict(values)


def test_rank_outside_the_world_is_refused():
    with pytest.raises(UserError, match="outside a world of 2"):
        ParallelLayout(tp=2).coordinates(2)


def test_plain_data_round_trip_and_text():
    layout = ParallelLayout(tp=2, dp=4, ep=2, zero=1, vocab_multiple=64)
    assert ParallelLayout.from_dict(layout.to_dict()) == layout
    assert str(layout) == "tp=2 dp=4 ep=2 zero=1 vocab_multiple=64"
    assert str(ParallelLayout()) == "one process"
