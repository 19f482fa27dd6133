"""MindSpore's small files: the exact text where readers depend on it, round trips, and malformed ones."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mappings.errors import UserError
from mappings.formats.iteration import (
    Holder,
    MeshLayout,
    Parameter,
    common_text,
    file_name,
    folder,
    is_optimizer_file,
    latest,
    metadata_text,
    read_metadata,
)
from mappings.formats.mindspore_ckpt import CkptError, ckpt_layout, text_value
from mappings.formats.mindspore_ckpt_reader import read_ckpt
from mappings.formats.param_name_map import param_name_map_text, read_param_name_map
from mappings.formats.protobuf import (
    ProtobufError,
    bytes_field,
    fields,
    integers,
    number_field,
    read_varint,
    signed,
    varint,
)
from mappings.formats.strategy import (
    Operator,
    Strategy,
    StrategyError,
    TensorLayout,
    decode_strategy,
    encode_strategy,
    read_strategy,
)
from mappings.formats.strategy_slices import Slices, slices, tensor_layout

# Made with MindFormers 2.1.0: get_sharded_tensor_from_strategy_metadata and save_metadata of its checkpoint package.
MINDFORMERS = (
    '{"state_dict_metadata":{"embedding.word_embeddings.weight":{"properties":{"dtype":"BFloat16",'
    '"replica_id":[0,0,1,1],"allow_shape_mismatch":false,"allow_to_save":true},"global_shape":[40,16],'
    '"axis_fragmentations":[2,1],"layout":{"device_matrix":[2,2],"tensor_map":[0,-1],"interleaved_parallel":false,'
    '"alias_name":["dp","tp"],"rank_list":[0,1,2,3]},"chunk":[{"global_offset":[0],"local_shape":[20,16]},'
    '{"global_offset":[1],"local_shape":[20,16]}]}},"storage_data":{"(\'embedding.word_embeddings.weight\', (0,))":'
    '[{"file_name":"model-0000000-0000004.safetensors","storage_rank":0,"rank_group":[0,2]}],'
    '"(\'embedding.word_embeddings.weight\', (1,))":[{"file_name":"model-0000001-0000004.safetensors",'
    '"storage_rank":1,"rank_group":[1,3]}]}}'
)
PARAMETERS = {
    "embedding.word_embeddings.weight": Parameter(
        "BFloat16",
        (40, 16),
        (2, 1),
        MeshLayout((2, 2), ((0,), ()), ("dp", "tp"), (0, 1, 2, 3)),
        {0: (20, 16), 1: (20, 16)},
        {n: (Holder(f"model-000000{n}-0000004.safetensors", n, (n, n + 2)),) for n in range(2)},
        (0, 0, 1, 1),
    )
}


def test_metadata_is_that_of_mindformers_to_the_byte(tmp_path):
    assert metadata_text(PARAMETERS) == MINDFORMERS
    (tmp_path / "metadata.json").write_text(MINDFORMERS)
    assert read_metadata(tmp_path / "metadata.json") == PARAMETERS


def test_names_are_those_of_mindformers():
    assert folder(7) == "iteration_00000007" and folder(123456789) == "iteration_123456789"
    assert file_name("model", 1, 4) == "model-0000001-0000004.safetensors"
    assert file_name("opt", 0, 4, "llama") == "llama-opt-0000000-0000004.safetensors"
    assert is_optimizer_file("my-opt-0000000-0000004.safetensors") and is_optimizer_file("opt-0-1.safetensors")
    assert not is_optimizer_file("my-opt-7b-model-0000002-0000008.safetensors")
    assert list(json.loads(common_text({"global_step": 3}))) == [
        "epoch_num", "step_num", "global_step", "loss_scale", "global_batch_size", "consumed_samples", "ckpt_status",
    ]  # fmt: skip
    with pytest.raises(ValueError, match="lr"):
        common_text({"lr": 1})


CHANGES = {
    "layout keys in another order": (
        '"device_matrix":[2,2],"tensor_map":[0,-1]', '"tensor_map":[0,-1],"device_matrix":[2,2]',
    ),
    "one layout key too many": ('"interleaved_parallel":false', '"interleaved_parallel":false,"x":1'),
    "mesh is a number": ('"device_matrix":[2,2]', '"device_matrix":4'),
    "float in a shape": ('"global_shape":[40,16]', '"global_shape":[40.0,16]'),
    "negative size": ('"global_shape":[40,16]', '"global_shape":[-40,16]'),
    "bool as size": ('"global_shape":[40,16]', '"global_shape":[true,16]'),
    "file outside": ("model-0000001-0000004.safetensors", "../model.safetensors"),
    "file is a number": ('"file_name":"model-0000001-0000004.safetensors"', '"file_name":1'),
    "a piece is stored nowhere": ("weight', (1,))", "weight', (0, ))"),
    "a piece is not listed": ('{"global_offset":[1],', '{"global_offset":[7],'),
    "key is code": ("('embedding.word_embeddings.weight', (1,))", "__import__('os').system('true')"),
    "key is no pair": ("('embedding.word_embeddings.weight', (1,))", "('a', 'b', (1,))"),
    "stored parameter is unknown": ("('embedding.word_embeddings.weight', (1,))", "('other', (1,))"),
    "no dtype": ('"dtype":"BFloat16",', ""),
    "no chunks": ('"chunk"', '"chunks"'),
    "storage is a list": ('"storage_data":{', '"storage_data":[],"x":{'),
    "cut": ('}]}}', ""),
}  # fmt: skip


@pytest.mark.parametrize("what", CHANGES)
def test_malformed_metadata_is_refused(tmp_path, what):
    old, new = CHANGES[what]
    assert old in MINDFORMERS
    path = tmp_path / "metadata.json"
    head, _, tail = MINDFORMERS.rpartition(old)
    path.write_text(head + new + tail)
    with pytest.raises(UserError, match=r"metadata\.json"):
        read_metadata(path)


def test_the_newest_step_is_the_trackers(tmp_path):
    assert latest(tmp_path) == tmp_path
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("12\n")
    with pytest.raises(UserError, match="iteration_00000012 is missing"):
        latest(tmp_path)
    (tmp_path / "iteration_00000012").mkdir()
    assert latest(tmp_path) == tmp_path / "iteration_00000012"
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("release")
    with pytest.raises(UserError, match="number of a step"):
        latest(tmp_path)


def test_param_name_map(tmp_path):
    path = tmp_path / "param_name_map.json"
    path.write_text(param_name_map_text({"w": "part0.safetensors"}, 8))
    assert read_param_name_map(path) == {"w": "part0.safetensors"}
    assert json.loads(path.read_text())["metadata"] == {"total_size": 8}
    path.write_text('{"w": "part0.safetensors"}')  # the older form
    assert read_param_name_map(path) == {"w": "part0.safetensors"}
    for bad in ('{"weight_map": {"w": "../x"}}', '{"weight_map": {"w": 1}}', '{"weight_map": []}', "{}", "[]", "{",
                '{"weight_map": {"w": "a\\\\b"}}', '{"w": "/etc/passwd"}'):  # fmt: skip
        path.write_text(bad)
        with pytest.raises(UserError, match="param_name_map"):
            read_param_name_map(path)


@given(st.integers(-(1 << 63), (1 << 64) - 1))
def test_numbers_survive(value):
    found, end = read_varint(varint(value), 0)
    assert end == len(varint(value)) and found == value % (1 << 64)
    assert value >= 1 << 63 or signed(found) == value


def test_packed_numbers_are_read_like_single_ones():
    packed = b"".join(map(varint, [1, 300, -1]))
    assert [signed(n) for n in integers(packed)] == [1, 300, -1] and integers(5) == [5]


@pytest.mark.parametrize(
    "data", [b"\x80", b"\x08", b"\xff" * 10, b"\x0a\x05abc", b"\x0b", b"\x00\x01", b"\x09abc",
             b"\x08" + b"\xff" * 9 + b"\x7f"],
)  # fmt: skip
def test_malformed_messages_are_refused(data):
    with pytest.raises(ProtobufError):
        list(fields(data))


def value(tag=b"w", dims=(2,), kind=b"Float32", content=b"\0" * 8, extra=b"") -> bytes:
    parts = b"".join(number_field(1, dim) for dim in dims)
    parts += (bytes_field(2, kind) if kind is not None else b"") + (
        bytes_field(3, content) if content is not None else b""
    )
    tensor = bytes_field(2, parts)
    return bytes_field(1, (bytes_field(1, tag) if tag is not None else b"") + tensor + extra)


BAD_CKPT = {
    "empty": b"",
    "text": b"not a checkpoint at all",
    "no tag": value(tag=None),
    "empty tag": value(tag=b""),
    "tag is not UTF-8": value(tag=b"\xff"),
    "control character in a tag": value(tag=b"a\0b"),
    "no type": value(kind=None),
    "unknown type": value(kind=b"Float99"),
    "four bits": value(kind=b"Int4"),
    "no content": value(content=None),
    "too few bytes": value(content=b"\0" * 7),
    "too many bytes": value(content=b"\0" * 12),
    "negative dim": value(dims=(-2,)),
    "huge dims": value(dims=(1 << 62, 1 << 62)),
    "tag occurs twice": value() + value(tag=b"x") + value(),
    "slices of two types": value(dims=(4,)) + value(dims=(4,), kind=b"Int32"),
    "slices cut an element": value(dims=(4,), content=b"\0" * 6) + value(dims=(4,), content=b"\0" * 10),
    "a slice is missing": value(dims=(4,)),
    "map parameter": bytes_field(1, bytes_field(1, b"w") + bytes_field(3, b"")),
    "unknown field": value(extra=number_field(9, 1)),
    "truncated": value()[:-3],
    "length beyond the file": b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
    "only a checksum": b"crc_num" + bytes(10),
    "text of three bytes": value(kind=b"str", dims=(), content=b"abc"),
    "text that is none": value(kind=b"str", dims=(), content=b"\xff" * 4),
    "dims without end": value(dims=(1,) * 200),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD_CKPT)
def test_malformed_ckpt_is_refused(tmp_path, what):
    path = tmp_path / "x.ckpt"
    path.write_bytes(BAD_CKPT[what])
    with pytest.raises(CkptError, match=r"x\.ckpt"):
        read_ckpt(path)
    with pytest.raises(CkptError, match=r"no regular file|cannot be read"):
        read_ckpt(tmp_path)


def test_the_names_of_damaged_tensors_are_told(tmp_path):
    (tmp_path / "x.ckpt").write_bytes(value(tag=b"good") + value(tag=b"bad", content=b""))
    with pytest.raises(CkptError, match=r"'bad'.* needs 8 bytes") as caught:
        read_ckpt(tmp_path / "x.ckpt")
    assert caught.value.tensor == "bad"


def test_scalars_of_older_writers_have_dims_of_zero(tmp_path):
    (tmp_path / "x.ckpt").write_bytes(value(dims=(0,), content=b"\0" * 4) + text_value("t", "é"))
    found = read_ckpt(tmp_path / "x.ckpt")
    assert [(t.name, t.shape) for t in found.tensors] == [("w", ())] and found.texts == {"t": "é"}


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_damage_to_a_ckpt_is_one_error_or_another_valid_file(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "fuzzed.ckpt"
    good = value() + value(tag=b"big", dims=(3, 2), content=bytes(24)) + text_value("t", "abc") + b"crc_num" + bytes(10)
    bad = bytearray(good)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(bad) - 1))
        bad[at] = data.draw(st.integers(0, 255))
    path.write_bytes(bad[: data.draw(st.integers(0, len(bad)))])
    try:
        found = read_ckpt(path)
    except CkptError:
        return
    size = path.stat().st_size
    assert all(offset >= 0 and offset + count <= size for t in found.tensors for offset, count in t.spans)


def test_layout_of_a_ckpt_refuses_what_mindspore_would_misread():
    for name, dtype, shape in (("", "F32", (1,)), ("w", "F8_E4M3", (1,)), ("w", "F32", (0,))):
        with pytest.raises(ValueError):
            ckpt_layout([(name, dtype, shape)])
    with pytest.raises(ValueError, match="twice"):
        ckpt_layout([("w", "F32", (1,)), ("w", "F32", (1,))])


STRATEGY = Strategy(1, (Operator("op", 0, ((2, 1),)),), {"w": tensor_layout(Slices((2, 2), ((1,), ())))})


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_damage_to_a_strategy_is_one_error_or_another_valid_file(data):
    bad = bytearray(encode_strategy(STRATEGY))
    for _ in range(data.draw(st.integers(1, 4))):
        bad[data.draw(st.integers(0, len(bad) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = decode_strategy(bytes(bad[: data.draw(st.integers(0, len(bad)))]), Path("s.ckpt"))
    except StrategyError:
        return
    assert decode_strategy(encode_strategy(found), Path("s.ckpt")) == found


def test_malformed_strategies_are_refused(tmp_path):
    path = tmp_path / "s.json"
    for bad in ("{}", '{"parallel_layout_item": 3}', '{"parallel_layout_item": {"w": {"dev_matrix": [2]}}}',
                '{"parallel_layout_item": {"w": {"dev_matrix": [true], "tensor_map": [0], "field": 0}}}'):  # fmt: skip
        path.write_text(bad)
        with pytest.raises(StrategyError, match=r"s\.json"):
            read_strategy(path)
    for data in (b"", b"\x12\x00", b"\x08\x01\x1a\x00", encode_strategy(STRATEGY)[:-1], b"x" * 50):
        with pytest.raises(StrategyError, match=r"s\.ckpt"):
            decode_strategy(data, Path("s.ckpt"))
    with pytest.raises(StrategyError, match="cannot be read"):
        read_strategy(tmp_path / "missing.ckpt")
    twice = encode_strategy(STRATEGY) + encode_strategy(STRATEGY)
    with pytest.raises(StrategyError, match="'w': occurs twice"):
        decode_strategy(twice, Path("s.ckpt"))


BAD_LAYOUTS = {
    "no mesh": TensorLayout((), ((0,),)),
    "mesh axis of nothing": TensorLayout(((0, 2),), ((0, -1),)),
    "mesh axis beyond the mesh": TensorLayout(((2, 2),), ((2, -1),)),
    "negative mesh axis": TensorLayout(((2, 2),), ((-2, -1),)),
    "one mesh axis twice": TensorLayout(((2, 2),), ((0, 0),)),
    "another number of axes": TensorLayout(((2, 2),), ((0,),)),
    "uneven": TensorLayout(((2, 2),), ((0, -1),), ((3, 5),)),
    "embedding of a field": TensorLayout(((2, 2),), ((0, -1),), field=3),
    "ranks without end": TensorLayout(((1 << 30, 1 << 30),), ((0, -1),)),
    "more pieces than copies": TensorLayout(((2, 2),), ((0, -1),), opt_weight_shard_step=2, opt_weight_shard_size=4),
}


@pytest.mark.parametrize("what", BAD_LAYOUTS)
def test_layouts_that_contradict_themselves_are_refused(what):
    with pytest.raises(ValueError):
        slices(BAD_LAYOUTS[what], 2)


@pytest.mark.parametrize("seed", range(30))
def test_cuts_survive_the_strategy_file(seed):
    rng = random.Random(seed)
    mesh = tuple(rng.choice([1, 2, 3]) for _ in range(rng.randint(1, 4)))
    axes = list(range(len(mesh)))
    rng.shuffle(axes)
    cuts = [[], []]
    for axis in axes[: rng.randint(0, len(mesh))]:
        cuts[rng.randrange(2)].append(axis)
    cut = Slices(mesh, tuple(map(tuple, cuts)))
    copies = len(cut.copies(0))
    cut = Slices(mesh, cut.cuts, rng.choice([n for n in range(1, copies + 1) if copies % n == 0]))
    assert slices(tensor_layout(cut), 2) == cut
    pieces: dict = {}
    for rank in range(cut.ranks):
        pieces.setdefault(cut.indices(rank), []).append(rank)
    rows, columns = cut.counts
    assert len(pieces) == rows * columns and len({len(ranks) for ranks in pieces.values()}) == 1
    assert all(tuple(ranks) == cut.copies(ranks[0]) for ranks in pieces.values())
