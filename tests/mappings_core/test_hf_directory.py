"""A Hugging Face directory whose index and shards disagree is refused."""

from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from mappings.errors import UserError
from mappings.formats.hf_directory import INDEX, SINGLE, read_config, read_json, read_tensors, read_weights

ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


@pytest.fixture
def sharded(tmp_path):
    save_file({"a": np.zeros(2, "f4")}, tmp_path / ONE, {"format": "pt"})
    save_file({"b": np.ones(3, "f2")}, tmp_path / TWO)
    write_index(tmp_path, {"a": ONE, "b": TWO})
    return tmp_path


def write_index(directory, weight_map):
    (directory / INDEX).write_text(json.dumps({"metadata": {"total_size": 14}, "weight_map": weight_map}))


def test_reads_shards_metadata_and_index(sharded):
    weights = read_weights(sharded)
    assert weights.index == {"metadata": {"total_size": 14}}
    assert weights.files[ONE].metadata == {"format": "pt"}
    assert {n: (e.dtype, e.shape, e.path.name) for n, e in read_tensors(sharded).items()} == {
        "a": ("F32", (2,), ONE),
        "b": ("F16", (3,), TWO),
    }


@pytest.mark.parametrize(
    ("weight_map", "words"),
    [
        ({"a": ONE, "b": "../" + TWO}, "outside"),
        ({"a": ONE, "b": "/etc/passwd"}, "outside"),
        ({"a": ONE, "b": ".."}, "outside"),
        ({"a": ONE, "b": ""}, "outside"),
        ({"a": ONE, "b": "x\0y"}, "outside"),
        ({"a": ONE, "b": "other.safetensors"}, "missing"),
        ({"a": ONE, "b": ONE}, "'b'|b .1 in all"),
        ({"a": ONE, "b": TWO, "c": TWO}, r"stored nowhere: c \(1 in all"),
        ({"b": TWO}, ONE),  # a shard that the index does not name
        ({"a": TWO, "b": TWO}, "'b'|stored nowhere: a|a .1 in all|" + ONE),
        ({}, "empty"),
        (["a"], "weight_map"),
        ({"a": 1}, "weight_map"),
        (None, "weight_map"),
    ],
)
def test_index_that_disagrees_is_refused(sharded, weight_map, words):
    write_index(sharded, weight_map)
    with pytest.raises(UserError, match=words):
        read_weights(sharded)


def test_tensor_in_two_shards_is_refused(sharded):
    save_file({"a": np.zeros(2, "f4"), "b": np.ones(3, "f2")}, sharded / TWO)
    with pytest.raises(UserError, match=f"{TWO}: tensor 'a': also stored in {ONE}"):
        read_weights(sharded)


def test_tensor_that_the_index_omits_is_refused(sharded):
    save_file({"b": np.ones(3, "f2"), "c": np.ones(3, "f2")}, sharded / TWO)
    with pytest.raises(UserError, match="'c': is not in the index"):
        read_weights(sharded)


def test_shards_left_beside_a_single_file_are_refused(sharded):
    (sharded / INDEX).unlink()
    with pytest.raises(UserError, match="neither"):
        read_weights(sharded)
    save_file({"a": np.zeros(2, "f4")}, sharded / SINGLE)
    with pytest.raises(UserError, match=f"{ONE}, {TWO} belongs to no index"):
        read_weights(sharded)


def test_pickled_weights_are_named_as_such(tmp_path):
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(UserError, match="pickled"):
        read_weights(tmp_path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "not valid JSON"),
        (b"[1]", "object"),
        (b"\xff", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b'{"a":' + b"1" * 5000 + b"}", "not valid JSON"),
    ],
)
def test_malformed_json_is_refused_with_its_file(tmp_path, content, words):
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(UserError, match=rf"config\.json: .*{words}"):
        read_config(tmp_path)


def test_missing_files_are_named(tmp_path):
    with pytest.raises(UserError, match="no such directory"):
        read_config(tmp_path / "none")
    with pytest.raises(UserError, match=r"config\.json: no such file"):
        read_config(tmp_path)
    with pytest.raises(UserError, match="cannot be read"):
        read_json(tmp_path)
