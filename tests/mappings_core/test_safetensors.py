"""Malformed safetensors files are refused with the file and the tensor named; odd but valid ones are read."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import save_file

from mappings.errors import UserError
from mappings.formats.safetensors import MAX_HEADER_BYTES, SafetensorsError, build_header, read_bytes, read_header

T = {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}
U = {"dtype": "U8", "shape": [4], "data_offsets": [4, 8]}


def raw(header: str | bytes, data: bytes = b"", length: int | None = None) -> bytes:
    text = header.encode() if isinstance(header, str) else header
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def body(entries: dict, size: int = 8) -> bytes:
    return raw(json.dumps(entries), bytes(size))


def one(size: int = 4, **changes) -> bytes:
    return body({"a.weight": {**T, **changes}}, size)


def without(key: str) -> bytes:
    return body({"a.weight": {k: v for k, v in T.items() if k != key}}, 4)


A = "a.weight"
T_TEXT, U_TEXT = json.dumps(T), json.dumps(U)
# name: (file, tensor that the message must name or None, words of the message)
MALFORMED = {
    "empty file": (b"", None, "too short"),
    "seven bytes": (bytes(7), None, "too short"),
    "zero header": (bytes(8), None, "'{'"),
    "zero header and data": (bytes(64), None, "'{'"),
    "header truncated": (raw('{"a":', length=500), None, "truncated"),
    "zip of torch.save": (b"PK\x03\x04\x00\x00\x08\x08" + bytes(64), None, "torch.save wrote it; `msmigrate weights"),
    "pickle of torch.save": (b"\x80\x02\x8a\x0al\xfc\x9cF" + bytes(64), None, "torch.save wrote it"),
    "header length huge": (raw("{}", length=MAX_HEADER_BYTES + 1), None, "limit"),
    "header length u64 max": (raw("{}", length=2**64 - 1), None, "limit"),
    "data truncated": (body({A: T}, 3), None, "truncated"),
    "data missing": (body({A: T}, 0), None, "truncated"),
    "trailing bytes": (body({A: T}, 5), None, "trailing"),
    "data without tensors": (raw("{}", b"abcd"), None, "trailing"),
    "hole": (body({A: T, "b": {**U, "data_offsets": [5, 9]}}, 9), "b", "hole"),
    "hole at the start": (body({A: U}), A, "hole"),
    "overlap": (body({A: T, "b": {**U, "data_offsets": [2, 6]}}, 6), "b", "overlaps"),
    "same range twice": (body({A: T, "b": T}, 4), "b", "overlaps"),
    "end past the file": (one(data_offsets=[0, 400], shape=[400]), None, "truncated"),
    "negative offset": (one(data_offsets=[-4, 0]), A, "data_offsets"),
    "reversed offsets": (one(data_offsets=[4, 0]), A, "data_offsets"),
    "one offset": (one(data_offsets=[0]), A, "data_offsets"),
    "three offsets": (one(data_offsets=[0, 2, 4]), A, "data_offsets"),
    "bool offset": (one(data_offsets=[False, 4]), A, "data_offsets"),
    "float offset": (one(data_offsets=[0.0, 4.0]), A, "data_offsets"),
    "text offset": (one(data_offsets=["0", "4"]), A, "data_offsets"),
    "offsets no list": (one(data_offsets={"begin": 0, "end": 4}), A, "data_offsets"),
    "offset over 63 bits": (one(data_offsets=[0, 2**64]), A, "data_offsets"),
    "missing dtype": (without("dtype"), A, "exactly"),
    "missing shape": (without("shape"), A, "exactly"),
    "missing offsets": (without("data_offsets"), A, "exactly"),
    "extra field": (one(order="F"), A, "exactly"),
    "entry is a list": (body({A: [1, 2]}, 0), A, "exactly"),
    "entry is null": (body({A: None}, 0), A, "exactly"),
    "unknown dtype": (one(dtype="F42"), A, "F42"),
    "lower-case dtype": (one(dtype="u8"), A, "u8"),
    "dtype is a number": (one(dtype=8), A, "dtype"),
    "dtype is a list": (one(dtype=["U8"]), A, "dtype"),
    "float shape": (one(shape=[4.0]), A, "shape"),
    "text shape": (one(shape=["4"]), A, "shape"),
    "bool shape": (one(shape=[True, 4]), A, "shape"),
    "negative shape": (one(shape=[-2, -2]), A, "shape"),
    "shape is a number": (one(shape=4), A, "shape"),
    "shape null": (one(shape=None), A, "shape"),
    "shape overflow": (one(shape=[2**62, 2**62]), A, "needs"),
    "shape wraps to the right size": (one(shape=[2**32, 2**32, 4]), A, "needs"),
    "thousands of axes": (one(shape=[2**62] * 5000), A, "axes"),
    "size mismatch": (one(shape=[5]), A, "needs 5 bytes"),
    "half a byte": (one(dtype="F4", shape=[7], data_offsets=[0, 4]), A, "needs 3.5 bytes"),
    "metadata is a list": (body({"__metadata__": ["pt"], A: T}, 4), None, "__metadata__"),
    "metadata is null": (body({"__metadata__": None, A: T}, 4), None, "__metadata__"),
    "metadata holds a number": (body({"__metadata__": {"format": 1}, A: T}, 4), None, "__metadata__"),
    "metadata nested": (body({"__metadata__": {"format": {}}, A: T}, 4), None, "__metadata__"),
    "metadata twice": (raw('{"__metadata__":{},"__metadata__":{}}'), None, "__metadata__"),
    "tensor twice, same layout": (raw(f'{{"a.weight":{T_TEXT},"a.weight":{T_TEXT}}}', bytes(4)), A, "twice"),
    "tensor twice": (raw(f'{{"a.weight":{T_TEXT},"a.weight":{U_TEXT}}}', bytes(8)), A, "twice"),
    "field twice": (raw('{"a.weight":{"dtype":"U8","dtype":"I8","shape":[0],"data_offsets":[0,0]}}'), "dtype", "twice"),
    "empty name": (body({"": T}, 4), "", "name"),
    "NUL in name": (body({"a\0b": T}, 4), "a\0b", "control"),
    "newline in name": (body({"a\nb": T}, 4), "a\nb", "control"),
    "C1 control in name": (body({"a\x9bb": T}, 4), "a\x9bb", "control"),
    "name climbs": (body({"../../etc/x": T}, 4), "../../etc/x", "escape"),
    "name absolute": (body({"/etc/x": T}, 4), "/etc/x", "escape"),
    "name with backslash": (body({"..\\x": T}, 4), "..\\x", "escape"),
    "lone surrogate": (raw(f'{{"\\ud800":{T_TEXT}}}', bytes(4)), None, "UTF-8"),
    "lone surrogate in metadata": (raw('{"__metadata__":{"k":"\\udfff"}}'), None, "UTF-8"),
    "header is a list": (raw("[]"), None, "'{'"),
    "header is text": (raw('"abc"'), None, "'{'"),
    "leading blanks": (raw("  {}"), None, "'{'"),
    "byte order mark": (raw(b"\xef\xbb\xbf{}"), None, "'{'"),
    "not JSON": (raw("{a: 1}"), None, "JSON"),
    "trailing comma": (raw(f'{{"a.weight":{T_TEXT},}}', bytes(4)), None, "JSON"),
    "text after the object": (raw("{} {}"), None, "JSON"),
    "NUL after the object": (raw("{}\0\0"), None, "JSON"),
    "NaN": (raw('{"a.weight":NaN}'), None, "NaN"),
    "bad UTF-8": (raw(b'{"\xff\xfe":1}'), None, "UTF-8"),
    "deep nesting": (raw('{"a":' + "[" * 100_000 + "]" * 100_000 + "}"), None, "JSON"),
    "number of 5000 digits": (raw('{"a.weight":%s}' % ("1" * 5000)), None, "JSON"),
}


def test_the_corpus_is_as_large_as_promised():
    assert len(MALFORMED) >= 46


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_file_is_refused_with_file_and_tensor(case, tmp_path):
    content, tensor, words = MALFORMED[case]
    path = tmp_path / "model-00001-of-00002.safetensors"
    path.write_bytes(content)
    with pytest.raises(SafetensorsError) as caught:
        read_header(path)
    message = str(caught.value)
    assert isinstance(caught.value, UserError)
    assert message.startswith(f"{path}: ")
    assert words in message
    assert tensor is None or repr(tensor) in message
    assert "\n" not in message and "\0" not in message  # one printable line


VALID = {
    "no tensors": raw("{}"),
    "not in offset order": body({"b": U, "a": T}),
    "trailing blanks": raw(json.dumps({A: T}) + " " * 13, bytes(4)),
    "scalar": body({A: {"dtype": "F32", "shape": [], "data_offsets": [0, 4]}}, 4),
    "empty tensor between": body({A: T, "e": {**T, "shape": [0, 7], "data_offsets": [4, 4]}, "z": U}),
    "empty tensor first": body({A: T, "e": {**T, "shape": [0], "data_offsets": [0, 0]}}, 4),
    "packed FP4": body({A: {"dtype": "F4", "shape": [8], "data_offsets": [0, 4]}}, 4),
    "FP8": body({A: {"dtype": "F8_E4M3", "shape": [4], "data_offsets": [0, 4]}}, 4),
    "E8M0": body({A: {"dtype": "F8_E8M0", "shape": [4], "data_offsets": [0, 4]}}, 4),
    "C64": body({A: {"dtype": "C64", "shape": [1], "data_offsets": [0, 8]}}),
    "unicode and dashes": body({"модель-1.слой": T}, 4),
}


@pytest.mark.parametrize("case", VALID)
def test_valid_file_is_read_as_the_library_reads_it(case, tmp_path):
    path = tmp_path / "x.safetensors"
    path.write_bytes(VALID[case])
    entries, _ = read_header(path)
    with safe_open(path, "numpy") as file:
        assert sorted(file.keys()) == sorted(entry.name for entry in entries)
        for entry in entries:
            assert list(entry.shape) == file.get_slice(entry.name).get_shape()
            assert entry.dtype == file.get_slice(entry.name).get_dtype()


def test_offsets_and_bytes_agree_with_the_library(tmp_path):
    rng = np.random.default_rng(0)
    arrays = {f"t{i}": rng.standard_normal((i, 3)).astype(kind) for i, kind in enumerate(["f4", "f2", "f8", "i4"])}
    save_file(arrays, tmp_path / "x.safetensors", metadata={"k": "v"})
    entries, metadata = read_header(tmp_path / "x.safetensors")
    assert metadata == {"k": "v"}
    assert {entry.name: read_bytes(entry) for entry in entries} == {n: a.tobytes() for n, a in arrays.items()}
    assert [entry.offset for entry in entries] == sorted(entry.offset for entry in entries)


def test_missing_directory_and_pipe_are_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path, words in ((tmp_path / "none", "cannot be read"), (tmp_path, "regular"), (tmp_path / "pipe", "regular")):
        with pytest.raises(SafetensorsError, match=words):
            read_header(path)


def test_file_that_shrinks_after_the_header_was_read(tmp_path):
    path = tmp_path / "x.safetensors"
    path.write_bytes(one())
    (entry,), _ = read_header(path)
    path.write_bytes(one()[:-1])
    with pytest.raises(SafetensorsError, match=r"'a\.weight': ends 1 bytes early"):
        read_bytes(entry)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.text(st.characters(blacklist_categories=("Cc", "Cs"), blacklist_characters="/\\"), min_size=1),
            st.sampled_from(["U8", "BF16", "F32", "F64"]),
            st.lists(st.integers(0, 4), max_size=3),
        ),
        max_size=6,
        unique_by=lambda item: item[0],
    )
)
def test_written_header_is_aligned_and_read_back(tmp_path_factory, tensors):
    tensors = [item for item in tensors if item[0] not in ("__metadata__", "..")]
    header, spans = build_header(tensors, {"format": "pt"})
    assert len(header) % 8 == 0
    path = tmp_path_factory.mktemp("h") / "x.safetensors"
    path.write_bytes(header + bytes(sum(size for _, size in spans.values())))
    entries, metadata = read_header(path)
    assert metadata == {"format": "pt"}
    assert {(e.name, e.dtype, e.shape, e.offset, e.nbytes) for e in entries} == {
        (name, dtype, tuple(shape), *spans[name]) for name, dtype, shape in tensors
    }
    with safe_open(path, "numpy") as file:
        assert set(file.keys()) == set(spans)


def test_header_of_one_name_twice_is_not_written():
    with pytest.raises(ValueError, match="twice"):
        build_header([("a", "F32", [1]), ("a", "F32", [1])])


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_damaged_header_is_read_or_refused_but_never_crashes(tmp_path_factory, data):
    good = bytearray(body({"a": T, "b": U}))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(good) - 1))
        good[at] = data.draw(st.integers(0, 255))
    path: Path = tmp_path_factory.mktemp("f") / "x.safetensors"
    path.write_bytes(good)
    try:
        entries, _ = read_header(path)
    except SafetensorsError as error:
        assert str(path) in str(error)
        return
    with safe_open(path, "numpy") as file:  # the Rust library accepts all that we accept
        assert sorted(file.keys()) == sorted(entry.name for entry in entries)
    # What is accepted tiles the data exactly.
    assert sum(entry.nbytes for entry in entries) == len(good) - min((e.offset for e in entries), default=len(good))
