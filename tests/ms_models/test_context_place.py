"""Which positions context-parallel ranks hold, and what is refused. No process is started."""

from __future__ import annotations

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor

from mappings.errors import UserError
from mappings.layout import ParallelLayout
from ms_models.parallel.context import RING, ULYSSES, ContextPlace
from ms_models.parallel.mesh import Mesh


def places(size: int, context: str) -> list[ContextPlace]:
    layout = ParallelLayout(cp=size)
    return [ContextPlace(Mesh(layout, rank).group("cp"), context) for rank in range(size)]


@pytest.mark.parametrize("context", [RING, ULYSSES])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_every_position_is_held_once(context: str, size: int) -> None:
    x = Tensor(np.random.default_rng(0).standard_normal((2, 12, 3)).astype(np.float32))
    held = []
    for place in places(size, context):
        positions = place.positions(12).asnumpy()
        assert place.local_length(12) == len(positions) == 12 // size
        assert np.all(np.diff(positions) > 0)
        assert np.array_equal(place.local(x, 1).asnumpy(), x.asnumpy()[:, positions])
        held.append(positions)
    assert sorted(np.concatenate(held)) == list(range(12))


def test_positions_of_both_kinds() -> None:
    ring = [place.positions(8).asnumpy().tolist() for place in places(2, RING)]
    assert ring == [[0, 1, 6, 7], [2, 3, 4, 5]]
    ulysses = [place.positions(8).asnumpy().tolist() for place in places(2, ULYSSES)]
    assert ulysses == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_ring_ranks_see_equally_many_keys() -> None:
    seen = [int((place.positions(24).asnumpy() + 1).sum()) for place in places(3, RING)]
    assert len(set(seen)) == 1


def test_compiled_parts() -> None:
    place = places(3, RING)[1]
    x = Tensor(np.arange(24, dtype=np.float32).reshape(2, 12))

    def doubled(x: Tensor) -> Tensor:
        return (place.local(x, 1) * 2 + place.positions(12)).sum()

    assert float(ms.jit(doubled)(x).asnumpy()) == float(doubled(x).asnumpy())
    gradient = ms.jit(ms.grad(doubled))(x).asnumpy()
    assert np.array_equal(np.nonzero(gradient[0])[0], place.positions(12).asnumpy())
    assert gradient.max() == 2


@pytest.mark.parametrize("jit", [False, True])
def test_uneven_lengths_are_refused(jit: bool) -> None:
    place = places(2, RING)[0]

    def local(x: Tensor) -> Tensor:
        return place.local(x, 1)

    with pytest.raises(UserError, match="sequence length 10 over cp=2 must be a multiple of 4; 12 would do"):
        (ms.jit(local) if jit else local)(Tensor(np.zeros((1, 10), np.float32)))
    assert places(2, ULYSSES)[0].local_length(10) == 5
    with pytest.raises(UserError, match="multiple of 2; 12 would do"):
        places(2, ULYSSES)[0].local_length(11)


def test_heads_and_kinds() -> None:
    places(4, ULYSSES)[0].check_heads(8)
    places(4, RING)[0].check_heads(6)
    with pytest.raises(UserError, match=r"ulysses over cp=4 needs .* found 6; context: ring takes any number"):
        places(4, ULYSSES)[0].check_heads(6)
    with pytest.raises(UserError, match="'rings' is unknown"):
        places(2, "rings")
