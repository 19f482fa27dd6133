"""The protobuf codecs against MindSpore's own messages: the same bytes out, the same contents in."""

from __future__ import annotations

import json
import math
import random
import zlib
from pathlib import Path

import numpy as np
import pytest

from mappings.arrangement import Arrangement
from mappings.formats.mindspore_ckpt import CRC_MARK, ckpt_layout, crc_trailer, text_value
from mappings.formats.mindspore_ckpt_reader import damaged, read_ckpt
from mappings.formats.mindspore_dtypes import FROM_MINDSPORE, TO_MINDSPORE
from mappings.formats.safetensors import DTYPE_BITS
from mappings.formats.strategy import (
    Operator,
    Strategy,
    TensorLayout,
    decode_strategy,
    encode_strategy,
    merged,
    read_strategy,
    strategy_json,
)
from mappings.formats.strategy_slices import Slices, slices, tensor_layout

TENSORS = [
    ("model.a-b.weight", "F32", (3, 4)), ("scalar", "I32", ()), ("b", "BF16", (2, 5)), ("flag", "BOOL", (1,)),
    ("umläut.名", "I8", (5,)), ("wide", "F64", (2, 1, 3)), ("half", "F16", (7,)), ("none", "F32", (0, 3)),
]  # fmt: skip


def contents() -> dict[str, bytes]:
    rng = random.Random(1)
    made = {}
    for name, dtype, shape in TENSORS:
        size = math.prod(shape) * DTYPE_BITS[dtype] // 8
        made[name] = bytes([rng.randrange(2) for _ in range(size)]) if dtype == "BOOL" else rng.randbytes(size)
    return made


def write_ckpt(path: Path, slice_bytes: int, *, crc: bool) -> None:
    layout = ckpt_layout(TENSORS, slice_bytes)
    data = bytearray(layout.size)
    for offset, text in layout.texts:
        data[offset : offset + len(text)] = text
    for name, content in contents().items():
        for offset, count in layout.spans[name]:
            data[offset : offset + count], content = content[:count], content[count:]
    data += text_value("note", "héllo")
    path.write_bytes(data)
    if crc:
        path.write_bytes(bytes(data) + crc_trailer(path, len(data)))


def reference_ckpt(slice_bytes: int) -> bytes:
    """The same file, serialised message by message by protobuf itself."""
    from mindspore.train.checkpoint_pb2 import Checkpoint

    out = b""
    for name, dtype, shape in TENSORS:
        content = contents()[name]
        for start in range(0, max(len(content), 1), slice_bytes):
            message = Checkpoint()
            value = message.value.add()
            value.tag = name
            value.tensor.dims.extend(shape)
            value.tensor.tensor_type = TO_MINDSPORE[dtype]
            value.tensor.tensor_content = content[start : start + slice_bytes]
            out += message.SerializeToString()
    message = Checkpoint()
    value = message.value.add()
    value.tag, value.tensor.tensor_type = "note", "str"
    value.tensor.tensor_content = np.array("héllo").tobytes()
    return out + message.SerializeToString()


@pytest.mark.parametrize("slice_bytes", [16, 512 << 20])
@pytest.mark.parametrize("crc", [False, True])
def test_ckpt_bytes_are_those_of_protobuf_and_are_read_back(tmp_path, slice_bytes, crc):
    path = tmp_path / "x.ckpt"
    write_ckpt(path, slice_bytes, crc=crc)
    reference = reference_ckpt(slice_bytes)
    trailer = CRC_MARK + zlib.crc32(reference).to_bytes(10, "big") if crc else b""
    assert path.read_bytes() == reference + trailer
    found = read_ckpt(path)
    data = path.read_bytes()
    assert [(t.name, t.dtype, t.shape) for t in found.tensors] == TENSORS
    assert {t.name: b"".join(data[a : a + n] for a, n in t.spans) for t in found.tensors} == contents()
    assert found.texts == {"note": "héllo"} and not damaged(path, found)
    if crc:
        offset = found.tensors[0].spans[0][0]
        path.write_bytes(data[:offset] + bytes([data[offset] ^ 1]) + data[offset + 1 :])
        assert damaged(path, read_ckpt(path))


@pytest.mark.parametrize("crc", [False, True])
def test_mindspore_loads_our_ckpt_and_we_read_its(tmp_path, crc):
    import mindspore

    write_ckpt(tmp_path / "ours.ckpt", 16, crc=crc)
    loaded = mindspore.load_checkpoint(str(tmp_path / "ours.ckpt"), crc_check=crc)
    assert loaded.pop("note") == "héllo"
    assert {n: p.data.get_bytes() for n, p in loaded.items() if n != "none"} == {
        name: content for name, content in contents().items() if content
    }
    assert {name: (FROM_MINDSPORE[str(p.dtype)], p.shape) for name, p in loaded.items()} == {
        name: (dtype, shape) for name, dtype, shape in TENSORS
    }
    theirs = tmp_path / "theirs.ckpt"
    saved = [{"name": name, "data": p} for name, p in loaded.items() if name != "none"]
    mindspore.save_checkpoint(saved, str(theirs), append_dict={"note": "héllo"}, crc_check=crc)
    found = read_ckpt(theirs)
    data = theirs.read_bytes()
    assert {t.name: b"".join(data[a : a + n] for a, n in t.spans) for t in found.tensors} == {
        name: content for name, content in contents().items() if content
    }
    assert found.texts == {"note": "héllo"} and (found.crc is not None) is crc and not damaged(theirs, found)


def random_strategy(rng: random.Random) -> Strategy:
    def row(low: int, high: int) -> tuple[int, ...]:
        return tuple(rng.randrange(low, high) for _ in range(rng.randrange(4)))

    layouts = {
        f"layers.{index}-ü.weight": TensorLayout(
            (row(1, 300),),
            tuple(row(-1, 9) for _ in range(rng.randrange(3))),
            tuple(row(-5, 1 << 40) for _ in range(rng.randrange(3))),
            tuple(row(-(1 << 62), 1 << 62) for _ in range(rng.randrange(3))),
            rng.randrange(-1, 3),
            rng.randrange(0, 300),
            rng.choice([-1, 0, 8]),
        )
        for index in range(rng.randrange(4))
    }
    operators = tuple(Operator(f"op{n}", rng.randrange(3), (row(1, 9), row(1, 9))) for n in range(rng.randrange(3)))
    return Strategy(rng.randrange(300), operators, layouts)


def reference_strategy(strategy: Strategy):
    from mindspore.train.node_strategy_pb2 import ParallelStrategyMap

    message = ParallelStrategyMap()
    message.current_stage = strategy.current_stage
    for operator in strategy.operators:
        item = message.parallel_strategy_item.add()
        item.node_name, item.parallel_strategys.stage = operator.name, operator.stage
        for row in operator.strategy:
            item.parallel_strategys.parallel_strategy.add().dim.extend(row)
    for name, layout in strategy.layouts.items():
        item = message.parallel_layout_item.add()
        item.param_name = name
        body = item.parallel_layouts
        for field in ("dev_matrix", "tensor_map", "param_split_shape", "indices_offset"):
            for row in getattr(layout, field):
                getattr(body, field).add().dim.extend(row)
        body.field = layout.field
        body.opt_weight_shard_step = layout.opt_weight_shard_step
        body.opt_weight_shard_size = layout.opt_weight_shard_size
    return message


@pytest.mark.parametrize("seed", range(20))
def test_strategy_bytes_are_those_of_protobuf_and_are_read_back(seed):
    strategy = random_strategy(random.Random(seed))
    data = encode_strategy(strategy)
    assert data == reference_strategy(strategy).SerializeToString()
    assert decode_strategy(data, Path("s.ckpt")) == strategy


def mesh_layout(mesh, *axes, **optimizer) -> TensorLayout:
    return tensor_layout(Slices(tuple(mesh), tuple(axes), **optimizer))


def test_merged_files_and_the_json_twin_are_those_of_mindspore(tmp_path):
    import mindspore

    stages = [
        Strategy(0, (Operator("Default/MatMul-op0", stage, ((2, 1),)),), {f"w{stage}": mesh_layout((2, 2), (1,), ())})
        for stage in range(2)
    ]
    for folder, suffix, text in (("p", ".ckpt", encode_strategy), ("j", ".json", lambda s: strategy_json(s).encode())):
        (tmp_path / folder).mkdir()
        for number, stage in enumerate([*stages, stages[1]]):  # two ranks of one stage write the same
            (tmp_path / folder / f"ckpt_strategy_rank_{number}{suffix}").write_bytes(text(stage))
        target = tmp_path / f"merged{suffix}"
        mindspore.merge_pipeline_strategys(str(tmp_path / folder), str(target))
        theirs, ours = read_strategy(target), merged(stages)
        assert theirs.current_stage == ours.current_stage == 1
        assert dict(theirs.layouts) == dict(ours.layouts) and len(ours.layouts) == 2
        assert sorted(o.name for o in theirs.operators) == sorted({o.name for o in ours.operators}) * (
            2 if suffix == ".ckpt" else 1
        )
    assert json.loads(strategy_json(stages[0]))["parallel_layout_item"]["w0"]["tensor_map"] == [0, -1]


CUTS = [
    Slices((2, 2), ((1,), ())),
    Slices((2, 2), ((), (1,))),
    Slices((2, 2), ((1,), ()), optimizer=2),
    Slices((4, 2), ((), (1,)), optimizer=4),
    Slices((4, 2), ((1,), ()), optimizer=2),
    Slices((2, 2, 2), ((0, 2), ())),
    Slices((2, 2, 2), ((2,), (0, 1))),
    Slices((2, 1, 4), ((), ()), optimizer=8),
    Slices((2, 2, 2), ((1,), ()), optimizer=2),
    Slices((2, 2, 2), ((0, 1), ()), optimizer=2),
    Slices((8,), ((0,), ())),
]


@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_pieces_of_every_rank_are_those_that_mindspore_cuts(tmp_path, cut):
    import mindspore
    from safetensors.numpy import load_file, save_file

    whole = np.arange(16 * 8, dtype=np.float32).reshape(16, 8)
    (tmp_path / "full").mkdir()
    save_file({"w": whole}, tmp_path / "full/part0.safetensors", metadata={"format": "ms"})
    layout = tensor_layout(cut)
    assert slices(layout, 2) == cut
    strategy = Strategy(0, (Operator("op", 0),), {"w": layout})
    (tmp_path / "strategy.ckpt").write_bytes(encode_strategy(strategy))
    mindspore.load_distributed_checkpoint(
        network=None,
        predict_strategy=str(tmp_path / "strategy.ckpt"),
        unified_safetensors_dir=str(tmp_path / "full"),
        dst_safetensors_dir=str(tmp_path / "out"),
        format="safetensors",
        max_process_num=1,
    )
    numbers = Arrangement.of("w", whole.shape)
    for rank in range(cut.ranks):
        theirs = load_file(tmp_path / f"out/rank_{rank}/net.safetensors")["w"]
        piece = cut.piece(numbers, rank)
        (box,) = piece.pieces
        ours = whole[tuple(slice(s, s + n) for s, n in zip(box.start, box.extent, strict=True))]
        assert np.array_equal(ours, theirs), rank
        assert cut.whole(piece.shape) == whole.shape
