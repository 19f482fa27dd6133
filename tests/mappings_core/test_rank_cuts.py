"""The slices of all ranks cover every atom, whatever the layout; what a rank holds is what its axes say."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from mappings.errors import UserError
from mappings.families import load_family
from mappings.layout import ParallelLayout
from mappings.rank_cuts import RankCuts
from mappings.shards import chunks_of_stage, layers_of_stage, stages_of_layers
from mappings.tiling import overlap, uncovered

CONFIG: dict[str, Any] = {
    "vocab_size": 11, "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 5, "num_attention_heads": 4,
    "num_key_value_heads": 2,
}  # fmt: skip


def boxes(cuts: RankCuts, ranks: list[int], states: bool = False) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {name: [] for name in cuts.atoms}
    for rank in ranks:
        for spelled, piece in cuts.tensors(rank, states):
            assert overlap(piece) is None, spelled.name
            for box in piece.pieces:
                found[box.atom].append((box.start, box.extent))
    return found


layouts = st.builds(
    dict, tp=st.sampled_from([1, 2, 4]), dp=st.integers(1, 4), pp=st.integers(1, 3), vpp=st.integers(1, 2),
    zero=st.integers(0, 3), vocab_multiple=st.integers(1, 3),
)  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(values=layouts, states=st.booleans(), tied=st.booleans())
def test_ranks_cover_every_atom(values: dict[str, int], states: bool, tied: bool) -> None:
    assume(values["vpp"] == 1 or (values["pp"] > 1 and values["pp"] * values["vpp"] <= 5))
    layout = ParallelLayout(**values)
    cuts = RankCuts(load_family("qwen2"), {**CONFIG, "tie_word_embeddings": tied}, layout)
    owner = layout.state_owner if states else layout.weight_owner
    owners = sorted({owner(rank) for rank in range(layout.world_size)})
    for name, found in boxes(cuts, owners, states).items():
        assert uncovered(cuts.atoms[name].shape, found) is None, name
    for rank in range(layout.world_size):
        assert cuts.tensors(rank, states) == cuts.tensors(owner(rank), states)


def test_more_ranks_than_key_value_heads_hold_copies() -> None:
    cuts = RankCuts(load_family("qwen2"), {**CONFIG, "num_key_value_heads": 2}, ParallelLayout(tp=4))
    name = "model.layers.0.self_attn.k_proj.weight"
    spans = [cuts.local(name, rank).pieces[0].start[0] for rank in range(4)]  # type: ignore[union-attr]
    assert spans == [0, 0, 2, 2]
    assert cuts.dims["kv_heads"] == 1 and cuts.dims["heads"] == 1
    with pytest.raises(UserError, match=r"4 heads of .*q_proj"):
        RankCuts(load_family("qwen2"), {**CONFIG, "intermediate_size": 16}, ParallelLayout(tp=8))


def test_stages_hold_their_layers_the_embedding_and_the_head() -> None:
    layout = ParallelLayout(pp=2, vpp=2)
    cuts = RankCuts(load_family("qwen2"), CONFIG, layout)
    held = [{spelled.name for spelled, _ in cuts.tensors(rank)} for rank in range(2)]
    layers = [{int(name.split(".")[2]) for name in names if ".layers." in name} for names in held]
    assert layers == [{0, 1, 3}, {2, 4}]  # chunks 0-1, 2, 3, 4 dealt round robin
    assert "model.embed_tokens.weight" in held[0] and "model.embed_tokens.weight" not in held[1]
    assert {"model.norm.weight", "lm_head.weight"} <= held[1] and not {"model.norm.weight"} & held[0]


def test_a_tied_embedding_is_on_both_ends_of_the_pipeline() -> None:
    cuts = RankCuts(load_family("qwen2"), {**CONFIG, "tie_word_embeddings": True}, ParallelLayout(pp=3))
    held = [{spelled.name for spelled, _ in cuts.tensors(rank)} for rank in range(3)]
    assert ["model.embed_tokens.weight" in names for names in held] == [True, False, True]


def test_zero_pads_axis_0_and_cuts_it_evenly() -> None:
    layout = ParallelLayout(dp=3, zero=1)
    cuts = RankCuts(load_family("qwen2"), CONFIG, layout)
    norm = [{s.name: a for s, a in cuts.tensors(rank, states=True)}["model.norm.weight"] for rank in range(3)]
    assert [(a.shape, a.padding, [p.start for p in a.pieces]) for a in norm] == [
        ((3,), 0, [(0,)]), ((3,), 0, [(3,)]), ((3,), 1, [(6,)]),
    ]  # fmt: skip
    assert {s.name: a for s, a in cuts.tensors(0)}["model.norm.weight"].shape == (8,)


@given(layers=st.integers(1, 40), pp=st.integers(1, 6), vpp=st.integers(1, 4))
def test_chunks_take_every_layer_once_and_evenly(layers: int, pp: int, vpp: int) -> None:
    assume(pp > 1 or vpp == 1)
    layout = ParallelLayout(pp=pp, vpp=vpp)
    chunks = [chunks_of_stage(layers, layout, rank) for rank in range(pp)]
    dealt = [chunks[index % pp][index // pp] for index in range(pp * vpp)]
    assert [layer for chunk in dealt for layer in chunk] == list(range(layers))
    assert max(map(len, dealt)) - min(map(len, dealt)) <= 1
    stages = stages_of_layers(layers, layout)
    assert all(layer in chunk for stage in range(pp) for chunk in chunks[stage] for layer in chunk)
    assert all(any(layer in chunk for chunk in chunks[stage]) for layer, stage in enumerate(stages))
    if vpp == 1:
        assert [list(c[0]) for c in chunks] == [list(layers_of_stage(layers, layout, rank)) for rank in range(pp)]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"dp": 2, "ep": 2}, "has no experts"),
        ({"pp": 4, "vpp": 2}, "the model has 5 layers"),
        ({"tp": 3}, "tp=2 would"),
    ],
)
def test_layout_that_no_cut_fits_is_refused(values: dict[str, int], words: str) -> None:
    with pytest.raises(UserError, match=words):
        RankCuts(load_family("qwen2"), CONFIG, ParallelLayout(**values))
