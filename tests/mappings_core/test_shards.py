"""The pieces of all ranks put together are the parameter, for sizes that divide and sizes that do not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mappings.errors import UserError
from mappings.families import Atom, load_family
from mappings.holdings import check_trainable
from mappings.layout import ParallelLayout
from mappings.shards import check_cut, layers_of_stage, padded_rows, tp_span

CONFIG = {
    "vocab_size": 11, "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2,
}  # fmt: skip


@given(size=st.integers(1, 50), tp=st.integers(1, 8), multiple=st.integers(1, 5))
def test_padded_spans_join_to_the_padded_whole(size, tp, multiple):
    atom = Atom("e", (size, 3), "embedding", 0, 1, True, None)
    layout = ParallelLayout(tp=tp, vocab_multiple=multiple)
    at = 0
    for rank in range(tp):
        start, stop, padding = tp_span(atom, layout, rank)
        assert start == min(at, size) and stop - start + padding == padded_rows(atom, layout) // tp
        at += stop - start
    assert at == size
    assert padded_rows(atom, layout) % (tp * multiple) == 0 and padded_rows(atom, layout) - size < tp * multiple


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        (ParallelLayout(tp=3), "4 heads of .*q_proj.*tp=2 would"),
        (ParallelLayout(pp=4), "4 x vpp=1 stages, but the model has 3 layers; pp=3 with vpp=1 would fit"),
        (ParallelLayout(pp=2, vpp=2), "2 x vpp=2 stages, but the model has 3 layers; vpp=1 would fit"),
        (ParallelLayout(dp=2, pp=2, zero=3), "zero=3 with pp=2"),
        (ParallelLayout(dp=2, ep=2), "qwen2 family has no experts"),
    ],
)
def test_layout_that_does_not_fit_is_refused(layout, words):
    with pytest.raises(UserError, match=words):
        check_trainable(load_family("qwen2"), CONFIG, layout)


def test_odd_ffn_is_named_by_its_axis():
    config = {**CONFIG, "intermediate_size": 7}
    with pytest.raises(UserError, match=r"7 rows of .*gate_proj.*tp=1 would"):
        check_cut(load_family("qwen2"), config, ParallelLayout(tp=2))


@given(layers=st.integers(1, 40), pp=st.integers(1, 40))
def test_stages_take_every_layer_once_and_evenly(layers, pp):
    stages = [layers_of_stage(layers, ParallelLayout(pp=pp), rank) for rank in range(pp)]
    assert [layer for stage in stages for layer in stage] == list(range(layers))
    assert max(map(len, stages)) - min(map(len, stages)) <= 1
