"""Hugging Face -> ranks -> Hugging Face gives back the very files, for random small models and layouts."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

from hf_checkpoints import config, write_model
from hypothesis import given, settings
from hypothesis import strategies as st

from mappings.formats.manifest import Manifest, damaged_files
from mappings.layout import ParallelLayout
from migrate.weights.command import convert, export, verify


@st.composite
def models(draw: st.DrawFn) -> dict:
    kind = draw(st.sampled_from(["llama", "qwen2"]))
    heads, per = draw(st.sampled_from([4, 8])), draw(st.sampled_from([1, 2]))
    changes = {
        "vocab_size": draw(st.integers(1, 61)),
        "hidden_size": heads * draw(st.integers(1, 5)),
        "intermediate_size": 4 * draw(st.integers(1, 9)),
        "num_hidden_layers": draw(st.integers(1, 3)),
        "num_attention_heads": heads,
        "num_key_value_heads": heads // per if heads // per >= 4 else heads,
        "tie_word_embeddings": draw(st.booleans()),
    }
    if draw(st.booleans()):
        changes["head_dim"] = draw(st.integers(1, 5))
    if kind == "llama":
        changes["attention_bias"] = draw(st.booleans())
        changes["mlp_bias"] = draw(st.booleans())
    return config(kind, **changes)


@settings(max_examples=60, deadline=None)
@given(
    model=models(),
    dtype=st.sampled_from(["F32", "BF16", "F16", "F64"]),
    shards=st.integers(1, 3),
    copy=st.booleans(),
    tp=st.sampled_from([1, 2, 4]),
    dp=st.sampled_from([1, 2]),
    multiple=st.sampled_from([1, 8]),
    seed=st.integers(0, 2**32 - 1),
)
def test_round_trip_gives_back_the_very_files(model, dtype, shards, copy, tp, dp, multiple, seed):
    # What reaches the disk when is not the question here.
    with TemporaryDirectory() as folder, patch("os.fsync", lambda fd: None):
        source, sharded, back = (Path(folder) / name for name in ("hf", "sharded", "back"))
        tied_copy = copy and model["tie_word_embeddings"]
        write_model(source, model, dtype=dtype, shards=shards, tied_copy=tied_copy, seed=seed)
        layout = ParallelLayout(tp=tp, dp=dp, vocab_multiple=multiple)
        report = convert(source, sharded, layout=layout, threads=2)
        assert report.exit_code == 0, report.to_json()
        assert report.facts["bytes_moved"] == report.facts["bytes_minimum"]
        assert damaged_files(sharded, Manifest.read(sharded)) == []
        assert verify(sharded, source=source).exit_code == 0
        assert export(sharded, back, threads=2).exit_code == 0
        for path in source.iterdir():
            if path.name != "README.md":
                assert (back / path.name).read_bytes() == path.read_bytes(), path.name
        assert {path.name for path in back.iterdir()} == {path.name for path in source.iterdir()} - {"README.md"}
        assert verify(back, source=source).exit_code == 0
