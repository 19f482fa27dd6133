"""Every dtype of safetensors, and tensors without axes or without elements, go through plan and copy bit for bit."""

from __future__ import annotations

import math
import random
from pathlib import Path

import numpy as np
import pytest
from container_runs import write

from mappings.arrangement import Arrangement, concat
from mappings.formats.mindspore_ckpt_reader import read_ckpt
from mappings.formats.mindspore_dtypes import TO_MINDSPORE
from mappings.formats.safetensors import DTYPE_BITS, build_header, read_bytes, read_header
from migrate.weights.engine.plan import plan
from migrate.weights.engine.proof import PlanError
from migrate.weights.tensors import Checkpoint, SourceTensor, Stored, TargetFile

WHOLE = [dtype for dtype, bits in DTYPE_BITS.items() if bits % 8 == 0]
SHAPES = [(), (1,), (0,), (3, 0, 2), (7, 5), (2, 3, 4)]


def source_of(directory: Path, dtypes: list[str], shapes: list[tuple[int, ...]]) -> tuple[Checkpoint, dict[str, bytes]]:
    rng = random.Random(1)
    rows = [(f"{dtype} {shape}", dtype, shape) for dtype in dtypes for shape in shapes]
    header, spans = build_header(rows)
    contents = {name: rng.randbytes(spans[name][1]) for name, _, _ in rows}
    path = directory / "source.safetensors"
    path.write_bytes(header + b"".join(contents.values()))
    tensors = [
        SourceTensor(Stored(path.name, e.name, e.dtype, Arrangement.of(e.name, e.shape)), path, e.offset)
        for e in read_header(path)[0]
    ]
    atoms = {name: shape for name, _, shape in rows}
    return Checkpoint(directory, "hf", None, {}, atoms, tuple(tensors), (), (), {}), contents


def turned(data: bytes, shape: tuple[int, ...], size: int) -> bytes:
    """The bytes of the transposed tensor."""
    raw = np.frombuffer(data, np.uint8).reshape(*shape, size)
    return raw.transpose(*reversed(range(len(shape))), len(shape)).tobytes()


def test_every_dtype_and_shape(tmp_path: Path) -> None:
    source, contents = source_of(tmp_path, WHOLE, SHAPES)
    targets = [
        Stored("target.safetensors", f"t {t.stored.name}", t.stored.dtype, t.stored.arrangement.transpose())
        for t in source.tensors
    ]
    write(source, [TargetFile("target.safetensors", tuple(targets), {})], tmp_path / "out")
    found = {entry.name: read_bytes(entry) for entry in read_header(tmp_path / "out/target.safetensors")[0]}
    assert len(found) == len(WHOLE) * len(SHAPES)
    for tensor in source.tensors:
        name, shape = tensor.stored.name, tensor.stored.arrangement.shape
        size = DTYPE_BITS[tensor.stored.dtype] // 8
        assert found[f"t {name}"] == turned(contents[name], shape, size), name


def test_every_dtype_in_a_ckpt(tmp_path: Path) -> None:
    shapes = [shape for shape in SHAPES if shape != (0,)]  # which MindSpore takes for a number
    source, contents = source_of(tmp_path, list(TO_MINDSPORE), shapes)
    targets = [Stored("a.ckpt", t.stored.name, t.stored.dtype, t.stored.arrangement) for t in source.tensors]
    write(source, [TargetFile("a.ckpt", tuple(targets), {}, "ckpt")], tmp_path / "out")
    data = (tmp_path / "out/a.ckpt").read_bytes()
    found = {t.name: b"".join(data[a : a + n] for a, n in t.spans) for t in read_ckpt(tmp_path / "out/a.ckpt").tensors}
    assert found == contents


def test_nothing_but_empty_tensors(tmp_path: Path) -> None:
    source, _ = source_of(tmp_path, ["F32", "I8"], [(0,), (4, 0)])
    targets = [Stored("t.safetensors", t.stored.name, t.stored.dtype, t.stored.arrangement) for t in source.tensors]
    write(source, [TargetFile("t.safetensors", tuple(targets), {})], tmp_path / "out")
    assert {e.name for e in read_header(tmp_path / "out/t.safetensors")[0]} == set(source.atoms)


def test_empty_parts_of_a_tensor(tmp_path: Path) -> None:
    source, contents = source_of(tmp_path, ["BF16"], [(0, 5), (7, 5)])
    parts = [t.stored.arrangement for t in source.tensors]
    joined = concat(0, [parts[0], parts[1], parts[0]])
    write(source, [TargetFile("t.safetensors", (Stored("t.safetensors", "t", "BF16", joined),), {})], tmp_path / "out")
    (entry,) = read_header(tmp_path / "out/t.safetensors")[0]
    assert entry.shape == (7, 5) and read_bytes(entry) == contents["BF16 (7, 5)"]


@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPE_BITS if dtype not in WHOLE])
def test_elements_that_are_no_whole_bytes(tmp_path: Path, dtype: str) -> None:
    source, _ = source_of(tmp_path, [dtype], [(8, 8)])
    with pytest.raises(PlanError, match=r"are no whole bytes; decode them first"):
        plan(source, ())
    assert math.prod((8, 8)) * DTYPE_BITS[dtype] % 8 == 0
