"""Arrangements mean what numpy's functions of the same names mean."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mappings.arrangement import Arrangement, concat, stack
from mappings.tiling import overlap, uncovered

Atoms = Mapping[str, Any]


def built(arrangement: Arrangement, atoms: Atoms) -> Any:
    """The tensor, element by element from its placements; an element written twice becomes -1."""
    flat = np.zeros(arrangement.size, np.int64)
    for placement in arrangement.placements():
        box = tuple(slice(s, s + e) for s, e in zip(placement.start, placement.extent, strict=True))
        values = atoms[placement.atom][box]
        for index in np.ndindex(*placement.extent):
            place = placement.offset + sum(i * stride for i, stride in zip(index, placement.strides, strict=True))
            flat[place] = values[index] if flat[place] == 0 else -1
    return flat.reshape(arrangement.shape)


def atom(name: str, *shape: int, start: int = 1) -> tuple[Arrangement, Any]:
    return Arrangement.of(name, shape), np.arange(start, start + int(np.prod(shape))).reshape(shape)


def test_grouped_query_key_value() -> None:
    groups, per_group, d, h = 3, 2, 4, 5
    q, a = atom("q", groups * per_group * d, h)
    k, b = atom("k", groups * d, h, start=1000)
    v, c = atom("v", groups * d, h, start=2000)
    fused = concat(1, [t.reshape(groups, -1, h) for t in (q, k, v)]).reshape(-1, h)
    expected = np.concatenate([t.reshape(groups, -1, h) for t in (a, b, c)], 1).reshape(-1, h)
    assert np.array_equal(built(fused, {"q": a, "k": b, "v": c}), expected)
    assert overlap(fused) is None and fused.padding == 0


def test_interleaved_rows_and_stacked_transposed_experts() -> None:
    names = [f"{part}{e}" for e in range(3) for part in "gu"]
    parts = {name: atom(name, 4, 5, start=1 + 100 * i) for i, name in enumerate(names)}
    atoms = {name: values for name, (_, values) in parts.items()}
    rows = stack(1, [parts["g0"][0], parts["u0"][0]]).reshape(8, 5)
    assert np.array_equal(built(rows, atoms), np.stack([atoms["g0"], atoms["u0"]], 1).reshape(8, 5))
    experts = stack(0, [concat(1, [parts[f"{p}{e}"][0].transpose() for p in "gu"]) for e in range(3)]).reshape(15, 8)
    expected = np.stack([np.concatenate([atoms[f"{p}{e}"].T for p in "gu"], 1) for e in range(3)]).reshape(15, 8)
    assert np.array_equal(built(experts, atoms), expected)
    assert len(experts.pieces) == 6


def test_slices_and_padding() -> None:
    table, values = atom("e", 7, 3)
    piece = table.pad(0, 10).slice(0, 5, 10)
    assert np.array_equal(built(piece, {"e": values}), np.pad(values, ((0, 3), (0, 0)))[5:10])
    assert piece.padding == 9


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_any_chain_of_operations(data: st.DataObject) -> None:
    atoms: dict[str, Any] = {}

    def fresh(shape: tuple[int, ...]) -> tuple[Arrangement, Any]:
        name = f"a{len(atoms)}"
        tensor, atoms[name] = atom(name, *shape, start=1 + 10_000 * len(atoms))
        return tensor, atoms[name]

    ours, theirs = fresh(tuple(data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))))
    for _ in range(data.draw(st.integers(1, 5))):
        axis = data.draw(st.integers(0, len(ours.shape) - 1))
        kind = data.draw(st.sampled_from(["transpose", "reshape", "concat", "stack", "slice", "pad"]))
        if kind == "transpose":
            order = data.draw(st.permutations(range(len(ours.shape))))
            ours, theirs = ours.transpose(*order), theirs.transpose(order)
        elif kind == "reshape":
            size = ours.size
            shape: list[int] = []
            while size > 1 and len(shape) < 3:
                shape.append(data.draw(st.sampled_from([n for n in range(1, size + 1) if size % n == 0])))
                size //= shape[-1]
            shape.append(size)
            ours, theirs = ours.reshape(*shape), theirs.reshape(shape)
        elif kind in ("concat", "stack"):
            other = fresh(ours.shape)
            join, model = (concat, np.concatenate) if kind == "concat" else (stack, np.stack)
            ours, theirs = join(axis, [ours, other[0]]), model([theirs, other[1]], axis)
        elif kind == "slice":
            start = data.draw(st.integers(0, ours.shape[axis] - 1))
            stop = data.draw(st.integers(start + 1, ours.shape[axis]))
            ours = ours.slice(axis, start, stop)
            theirs = theirs[(slice(None),) * axis + (slice(start, stop),)]
        elif ours.size < 500:
            size = ours.shape[axis] + data.draw(st.integers(0, 2))
            widths = [(0, size - n if a == axis else 0) for a, n in enumerate(ours.shape)]
            ours, theirs = ours.pad(axis, size), np.pad(theirs, widths)
    assert ours.shape == theirs.shape
    assert np.array_equal(built(ours, atoms), theirs)
    assert overlap(ours) is None
    assert ours.padding == int((theirs == 0).sum())


def test_overlaps_are_found() -> None:
    a, b = Arrangement.of("a", (4, 6)), Arrangement.of("b", (4, 6))
    twice = Arrangement((4, 6), (*a.slice(1, 0, 4).pieces, *b.slice(1, 0, 3).pieces))
    assert overlap(twice) is not None
    columns = stack(2, [a, b]).reshape(4, 12)
    assert overlap(columns) is None
    shifted = Arrangement((4, 12), (*columns.pieces[:1], *stack(2, [b, b]).reshape(4, 12).pieces[:1]))
    assert overlap(shifted) is not None
    outside = Arrangement((3, 6), a.pieces)
    assert overlap(outside) is not None


def test_holes_are_found() -> None:
    assert uncovered((4, 6), [((0, 0), (4, 3)), ((0, 3), (4, 3))]) is None
    assert uncovered((4, 6), [((0, 0), (4, 3)), ((0, 3), (3, 3))]) == (3, 3)
    assert uncovered((4,), []) == (0,)
    assert uncovered((), [((), ())]) is None
    assert uncovered((), []) == ()
    assert uncovered((5,), [((0,), (4,)), ((2,), (3,))]) is None


@pytest.mark.parametrize(
    "make",
    [
        lambda a: a.slice(0, 2, 9),
        lambda a: a.pad(0, 1),
        lambda a: a.reshape(5, -1),
        lambda a: a.transpose(0, 0),
        lambda a: concat(0, []),
        lambda a: concat(0, [a, a.transpose()]),
    ],
)
def test_impossible_operations_are_refused(make: Any) -> None:
    with pytest.raises(ValueError):
        make(Arrangement.of("a", (4, 6)))
