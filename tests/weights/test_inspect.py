"""`inspect` counts NaN and Inf as numpy does, for every 16-bit pattern, and describes all three kinds of subject."""

from __future__ import annotations

import numpy as np
import pytest
from hf_checkpoints import config, write_model, write_tensors

from mappings.errors import UserError
from mappings.formats.safetensors import read_header
from mappings.layout import ParallelLayout
from migrate.report import Verdict
from migrate.weights import statistics as statistics_module
from migrate.weights.command import convert, inspect
from migrate.weights.destinations import Destination


def as_bytes(array):
    return array.view(np.uint8).reshape(*array.shape, array.itemsize)


def one(tmp_path, dtype, array):
    write_tensors(tmp_path / "x.safetensors", {"t": (dtype, as_bytes(array))})
    return read_header(tmp_path / "x.safetensors")[0][0]


def special(entry):
    found = statistics_module.statistics(entry.path, entry.dtype, [(entry.offset, entry.nbytes)], entry.name)
    return found.nan, found.inf


def test_every_half_and_bfloat_pattern(tmp_path, monkeypatch):
    monkeypatch.setattr(statistics_module, "CHUNK", 4096)  # so that several blocks are read
    patterns = np.arange(1 << 16, dtype=np.uint16)
    half = patterns.view(np.float16)
    assert special(one(tmp_path, "F16", patterns)) == (np.isnan(half).sum(), np.isinf(half).sum())
    # A bfloat16 is the upper half of a float32.
    wide = (patterns.astype(np.uint32) << 16).view(np.float32)
    assert special(one(tmp_path, "BF16", patterns)) == (np.isnan(wide).sum(), np.isinf(wide).sum())


@pytest.mark.parametrize(("dtype", "kind"), [("F32", np.float32), ("F64", np.float64)])
def test_random_patterns_of_the_wide_types(tmp_path, dtype, kind):
    raw = np.random.default_rng(0).integers(0, 256, 80_000, np.uint8)
    raw[::8] |= 0xFF  # raises the share of all-ones exponents
    raw[7::8] = 0x7F
    raw[6::8] |= 0xF0
    values = np.concatenate([raw.view(kind), np.array([np.inf, -np.inf, np.nan, 0, kind(np.finfo(kind).max)], kind)])
    nan, inf = special(one(tmp_path, dtype, values))
    assert (nan, inf) == (np.isnan(values).sum(), np.isinf(values).sum())
    assert nan > 1000 and inf >= 2


def test_integers_are_not_counted(tmp_path):
    from safetensors.numpy import save_file

    save_file({"ids": np.arange(4)}, tmp_path / "x.safetensors")
    report = inspect(tmp_path / "x.safetensors")
    assert report.exit_code == 0 and report.stages[0].verdict is Verdict.SKIPPED
    assert [report.facts["tensors"][0][key] for key in ("nan", "min", "max", "mean")] == [0, 0.0, 3.0, 1.5]


def test_nan_is_a_finding_with_the_tensor(tmp_path):
    values = np.zeros((3, 5), np.float32)
    values[1, 2], values[2, 0] = np.nan, np.inf
    one(tmp_path, "F32", values)
    report = inspect(tmp_path / "x.safetensors")
    assert report.exit_code == 1
    (found,) = report.findings
    assert (found.code, found.tensor, found.message) == ("W015", "t", "1 NaN and 1 Inf")


def test_the_three_kinds_of_subject(tmp_path):
    write_model(tmp_path / "hf", config("llama"), dtype="BF16", shards=2)
    convert(tmp_path / "hf", tmp_path / "out", layout=ParallelLayout(tp=2))
    source, ranks = inspect(tmp_path / "hf").facts, inspect(tmp_path / "out").facts
    one_file = inspect(tmp_path / "out/model-rank00001.safetensors").facts
    assert (source["kind"], source["files"], source["tensor_count"]) == ("Hugging Face directory", 2, 21)
    assert (ranks["kind"], ranks["family"], ranks["layout"]) == ("sharded checkpoint", "llama", "tp=2")
    assert (ranks["files"], ranks["tensor_count"]) == (2, 42)
    assert (one_file["kind"], one_file["metadata"], one_file["tensor_count"]) == (
        "safetensors file",
        {"format": "ms"},
        21,
    )
    assert source["dtypes"] == {"BF16": 21} and source["bytes"] == 2 * source["elements"]
    shapes = {row["name"]: row["shape"] for row in one_file["tensors"]}
    assert shapes["model.embed_tokens.weight"] == [19, 16]
    assert shapes["model.layers.0.mlp.down_proj.weight"] == [16, 12]


def test_files_of_other_frameworks_and_their_directories(tmp_path):
    import mindspore
    import torch

    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    torch.save({"w": torch.from_numpy(values), "t": torch.from_numpy(values).t()}, tmp_path / "m.pt")
    (tmp_path / "ms").mkdir()
    mindspore.save_checkpoint([{"name": "w", "data": mindspore.Tensor(values)}], str(tmp_path / "ms" / "m.ckpt"))
    pickled, saved = inspect(tmp_path / "m.pt").facts, inspect(tmp_path / "ms").facts
    assert (pickled["kind"], pickled["tensor_count"]) == ("pickled state dict", 2)
    assert (saved["kind"], saved["tensor_count"]) == ("directory of MindSpore", 1)
    for row in (*pickled["tensors"], *saved["tensors"], *inspect(tmp_path / "ms" / "m.ckpt").facts["tensors"]):
        assert (row["bytes"], row["min"], row["max"], row["mean"], row["nan"]) == (24, 0.0, 5.0, 2.5, 0)
        assert row["magnitudes"] == "2^0 +@@ 2^3"
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"holds no \.safetensors"):
        inspect(tmp_path / "empty")


@pytest.mark.parametrize("as_ckpt", [False, True])
def test_strategies_beside_the_ranks_are_no_tensors(tmp_path, as_ckpt):
    write_model(tmp_path / "hf", config())
    layout = ParallelLayout(tp=2, pp=2)
    convert(tmp_path / "hf", tmp_path / "out", destination=Destination("strategy", layout, as_ckpt=as_ckpt))
    assert (tmp_path / "out/strategy/merged_ckpt_strategy.ckpt").is_file()
    facts = inspect(tmp_path / "out").facts
    assert facts["files"] == 4
    assert facts["tensor_count"] == 2 * len(read_header(tmp_path / "hf/model.safetensors")[0])


def test_a_rank_that_holds_nothing_has_an_empty_file(tmp_path):
    write_model(tmp_path / "hf", config("llama", num_hidden_layers=1))
    destination = Destination("strategy", ParallelLayout(dp=20), as_ckpt=True, remove_redundancy=True)
    convert(tmp_path / "hf", tmp_path / "out", destination=destination)
    assert min(path.stat().st_size for path in (tmp_path / "out").glob("rank_*/*")) == 0
    facts = inspect(tmp_path / "out").facts
    assert facts["tensor_count"] == len(read_header(tmp_path / "hf/model.safetensors")[0])


def test_missing_path(tmp_path):
    with pytest.raises(UserError, match="no such file or directory"):
        inspect(tmp_path / "none")
