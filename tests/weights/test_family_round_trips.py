"""Hugging Face -> any layout -> any other layout -> Hugging Face gives back every bit, for every family.

Only arrangements and numpy: no reader, planner or writer of files takes part.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from random_models import SMALL, models
from safetensors import safe_open

from mappings.arrangement import Arrangement
from mappings.errors import UserError
from mappings.families import families, load_family
from mappings.formats.safetensors import build_header
from mappings.layout import ParallelLayout
from mappings.rank_cuts import RankCuts

ONE = ParallelLayout()
Tensors = dict[str, Any]


def views(arrangement: Arrangement, flat: Any, atoms: Tensors) -> list[tuple[Any, Any]]:
    """For each box of a tensor, where it lies in the tensor's elements and in its atom."""
    pairs = []
    for place in arrangement.placements():
        strides = tuple(step * flat.itemsize for step in place.strides)
        box = tuple(slice(start, start + count) for start, count in zip(place.start, place.extent, strict=True))
        inside = np.lib.stride_tricks.as_strided(flat[place.offset :], place.extent, strides)
        pairs.append((inside, atoms[place.atom][box]))
    return pairs


class Stored:
    """A model in a layout: the tensors of every rank that has a file of its own."""

    def __init__(self, cuts: RankCuts) -> None:
        self.shapes = {name: atom.shape for name, atom in cuts.atoms.items()}
        owners = {cuts.layout.weight_owner(rank) for rank in range(cuts.layout.world_size)}
        self.arrangements = {
            (rank, spelled.name): piece for rank in sorted(owners) for spelled, piece in cuts.tensors(rank)
        }

    def written(self, atoms: Tensors) -> dict[Any, Any]:
        """The tensors; padding is zero."""
        tensors = {}
        for key, arrangement in self.arrangements.items():
            flat = np.zeros(arrangement.size, np.uint32)
            for inside, values in views(arrangement, flat, atoms):
                inside[...] = values
            tensors[key] = flat.reshape(arrangement.shape)
        return tensors

    def read(self, tensors: dict[Any, Any]) -> Tensors:
        """The atoms. Every element is there, copies agree, and the rest is zero."""
        atoms = {name: np.zeros(shape, np.uint32) for name, shape in self.shapes.items()}
        for key, arrangement in self.arrangements.items():
            flat = tensors[key].ravel()
            for inside, values in views(arrangement, flat, atoms):
                assert np.array_equal(values, inside) or not values.any(), f"two copies in {key} differ"
                values[...] = inside
            assert np.count_nonzero(flat) == flat.size - arrangement.padding, key
        assert all(values.all() for values in atoms.values())
        return atoms


def numbered(shapes: dict[str, tuple[int, ...]]) -> Tensors:
    """Atoms whose elements all differ; none is zero, as padding is."""
    ends = np.cumsum([0, *(math.prod(shape) for shape in shapes.values())])
    return {
        name: np.arange(start + 1, start + 1 + math.prod(shape), dtype=np.uint32).reshape(shape)
        for (name, shape), start in zip(shapes.items(), ends.tolist(), strict=False)
    }


@pytest.mark.parametrize("name", sorted(families()))
@settings(max_examples=3, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(data=st.data())
def test_every_bit_comes_back(name: str, data: Any) -> None:
    config, layouts, spellings = data.draw(models(name))
    family = load_family(name)
    try:
        cuts = [RankCuts(family, config, layout, spelling) for layout, spelling in zip(layouts, spellings, strict=True)]
    except UserError:
        assume(False)
    start = Stored(RankCuts(family, config, ONE))
    original = start.written(numbered(start.shapes))
    atoms = start.read(original)
    for stored in map(Stored, cuts):
        atoms = stored.read(stored.written(atoms))
    back = start.written(atoms)
    assert back.keys() == original.keys()
    for key, values in original.items():
        assert values.tobytes() == back[key].tobytes(), key


def test_a_lost_row_a_wrong_copy_and_filled_padding_are_noticed() -> None:
    config = {"model_type": "phi3", **SMALL["phi3"]["config"], "vocab_size": 31}
    stored = Stored(RankCuts(load_family("phi3"), config, ParallelLayout(tp=4)))
    good = stored.written(numbered(stored.shapes))
    stored.read(good)
    fused, table = "model.layers.0.self_attn.qkv_proj.weight", "model.embed_tokens.weight"
    lost = {**good, (1, table): np.zeros_like(good[1, table])}
    with pytest.raises(AssertionError, match="embed_tokens"):
        stored.read(lost)
    other = good[1, fused].copy()
    other[4] += 1  # ranks 0 and 1 share a head of keys
    with pytest.raises(AssertionError, match=r"two copies in .*qkv_proj"):
        stored.read({**good, (1, fused): other})
    filled = good[3, table].copy()
    filled[-1] = 7
    with pytest.raises(AssertionError, match="embed_tokens"):
        stored.read({**good, (3, table): filled})


names = st.text(st.characters(blacklist_categories=["Cs", "Cc"]), min_size=1, max_size=12).map(
    lambda s: f"слой-1.{s}-β"
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(renamed=st.lists(names, min_size=3, max_size=6, unique=True))
def test_any_name_survives_the_writer(renamed: list[str], tmp_path: Path) -> None:
    """Names with dashes and letters of any script, as the Rust library reads them."""
    values = {name: np.arange(index + 1, dtype=np.uint32) for index, name in enumerate(renamed)}
    header, spans = build_header([(name, "U32", array.shape) for name, array in values.items()], {"format": "pt"})
    path = tmp_path / "model-ü.safetensors"
    path.write_bytes(header + b"".join(array.tobytes() for array in values.values()))
    assert all(path.read_bytes()[at : at + size] == values[name].tobytes() for name, (at, size) in spans.items())
    with safe_open(path, "np") as file:
        assert set(file.keys()) == set(values)
        assert all(np.array_equal(file.get_tensor(name), array) for name, array in values.items())
