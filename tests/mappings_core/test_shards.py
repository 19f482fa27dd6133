"""The pieces of all ranks put together are the parameter, for sizes that divide and sizes that do not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mappings.errors import UserError
from mappings.families import Parameter, load_family
from mappings.layout import ParallelLayout
from mappings.shards import check_layout, layers_of_stage, padded_rows, rank_shards, shard

CONFIG = {
    "vocab_size": 11, "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2,
}  # fmt: skip


@given(size=st.integers(1, 50), tp=st.integers(1, 8), multiple=st.integers(1, 5))
def test_padded_pieces_join_to_the_padded_whole(size, tp, multiple):
    parameter = Parameter("e", (size, 3), "embedding", 0, 1, True, None)
    layout = ParallelLayout(tp=tp, vocab_multiple=multiple)
    whole = np.arange(1, size * 3 + 1).reshape(size, 3)
    pieces = []
    for rank in range(tp):
        piece = shard(parameter, layout, rank)
        pieces.append(np.concatenate([whole[piece.start : piece.stop], np.zeros((piece.padding, 3), int)]))
        assert pieces[-1].shape == piece.shape == (padded_rows(parameter, layout) // tp, 3)
        assert piece.is_whole == (piece.shape == whole.shape and piece.padding == 0)
    joined = np.concatenate(pieces)
    assert len(joined) % (tp * multiple) == 0 and len(joined) - size < tp * multiple
    assert (joined[:size] == whole).all() and not joined[size:].any()


@pytest.mark.parametrize("cut", [0, 1])
def test_cut_pieces_join_to_the_whole(cut):
    whole = np.arange(48).reshape(6, 8)
    parameter = Parameter("w", (6, 8), "ffn", cut, 1, False, 0)
    pieces = []
    for rank in range(2):
        piece = shard(parameter, ParallelLayout(tp=2), rank)
        index = [slice(None), slice(None)]
        index[cut] = slice(piece.start, piece.stop)
        pieces.append(whole[tuple(index)])
        assert pieces[-1].shape == piece.shape and not piece.is_whole
    assert (np.concatenate(pieces, cut) == whole).all()


def test_replicated_parameter_is_whole_on_every_rank():
    parameter = Parameter("n", (6,), "norm", None, 1, False, 0)
    for rank in range(4):
        piece = shard(parameter, ParallelLayout(tp=4), rank)
        assert piece.shape == (6,) and piece.is_whole


@pytest.mark.parametrize("family", ["qwen2", "llama"])
def test_every_rank_holds_every_parameter(family):
    loaded = load_family(family)
    names = [parameter.name for parameter in loaded.parameters(CONFIG)]
    for rank in range(4):
        pieces = rank_shards(loaded, CONFIG, ParallelLayout(tp=2, dp=2), rank)
        assert [piece.parameter.name for piece in pieces] == names


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        (ParallelLayout(tp=4), "2 heads of .*k_proj.*tp=2 would"),
        (ParallelLayout(tp=3), "4 heads of .*q_proj.*tp=2 would"),
        (ParallelLayout(pp=4), "4 x vpp=1 stages, but the model has 3 layers; pp=3 with vpp=1 would fit"),
        (ParallelLayout(pp=2, vpp=2), "2 x vpp=2 stages, but the model has 3 layers; vpp=1 would fit"),
        (ParallelLayout(pp=2), "nothing else yet"),
        (ParallelLayout(cp=2), "nothing else yet"),
        (ParallelLayout(dp=2, zero=1), "nothing else yet"),
        (ParallelLayout(dp=2, ep=2), "nothing else yet"),
    ],
)
def test_layout_that_does_not_fit_is_refused(layout, words):
    with pytest.raises(UserError, match=words):
        check_layout(load_family("qwen2"), CONFIG, layout)
        rank_shards(load_family("qwen2"), CONFIG, layout, 0)


def test_odd_ffn_is_named_by_its_axis():
    config = {**CONFIG, "intermediate_size": 7}
    with pytest.raises(UserError, match=r"7 rows of .*gate_proj.*tp=1 would"):
        check_layout(load_family("qwen2"), config, ParallelLayout(tp=2))


@given(layers=st.integers(1, 40), pp=st.integers(1, 40))
def test_stages_take_every_layer_once_and_evenly(layers, pp):
    stages = [layers_of_stage(layers, ParallelLayout(pp=pp), rank) for rank in range(pp)]
    assert [layer for stage in stages for layer in stage] == list(range(layers))
    assert max(map(len, stages)) - min(map(len, stages)) <= 1
