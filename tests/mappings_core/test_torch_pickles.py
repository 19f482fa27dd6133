"""Files of `torch.save` are read as torch reads them, and nothing but tensors is."""

from __future__ import annotations

import io
import os
import pickle
import struct
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mappings.formats.pickle_machine import PickleError, run
from mappings.formats.torch_pickles import PickledTensor, read_tensors

DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool, torch.complex64, torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn,
    torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz,
]  # fmt: skip


def elements(tensor: PickledTensor) -> bytes:
    """The bytes of a tensor, row by row, gathered by its offset and strides."""
    data = np.frombuffer(tensor.path.read_bytes(), np.uint8)
    width = tensor.nbytes // max(int(np.prod(tensor.shape)), 1) or 1
    if 0 in tensor.shape:
        return b""
    strides = [stride * width for stride in tensor.strides]
    view = np.lib.stride_tricks.as_strided(data[tensor.offset :], (*tensor.shape, width), (*strides, 1))
    return view.tobytes()


def expected(tensor: torch.Tensor) -> bytes:
    whole = tensor.detach().contiguous().reshape(-1)
    return whole.view(torch.uint8).numpy().tobytes() if whole.numel() else b""


def state() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    base = torch.randn(4, 6, generator=generator)
    tensors: dict[str, torch.Tensor] = {
        str(dtype): torch.randint(0, 255, (3, 16), dtype=torch.uint8, generator=generator)
        .view(dtype if dtype is not torch.bool else torch.uint8)
        .clone()
        for dtype in DTYPES
    }
    tensors["flag"] = tensors["torch.bool"] > 100
    return {
        **tensors,
        "transposed": base.t(),
        "rows": base[1:3],
        "columns": base[:, 2:5],
        "expanded": base[0].expand(3, 6),
        "scalar": torch.tensor(2.5),
        "empty": torch.zeros(0, 3),
        "parameter": torch.nn.Parameter(base),
        "ünicode-name": base.clone(),
    }


@pytest.mark.parametrize("is_zip", [True, False])
def test_every_tensor_is_read_as_torch_reads_it(tmp_path: Path, is_zip: bool) -> None:
    tensors = state()
    if not is_zip:  # torch refuses these dtypes in the legacy format
        tensors = {name: t for name, t in tensors.items() if "float8" not in name and "uint" not in name}
    path = tmp_path / "model.bin"
    torch.save(tensors, path, _use_new_zipfile_serialization=is_zip)
    found = read_tensors(path)
    assert list(found) == list(tensors)
    for name, tensor in tensors.items():
        assert found[name].shape == tuple(tensor.shape), name
        assert elements(found[name]) == expected(tensor), name
        assert found[name].is_contiguous == tensor.is_contiguous(), name


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_module_s_state_dict_and_every_protocol(tmp_path: Path, protocol: int) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    torch.save(module.state_dict(), tmp_path / "m.pt", pickle_protocol=protocol)
    found = read_tensors(tmp_path / "m.pt")
    for name, tensor in module.state_dict().items():
        assert elements(found[name]) == expected(tensor)


def test_shared_storages_are_the_same_bytes(tmp_path: Path) -> None:
    base = torch.arange(6.0)
    torch.save({"a": base, "b": base, "c": base.clone()}, tmp_path / "m.pt")
    found = read_tensors(tmp_path / "m.pt")
    assert found["a"].offset == found["b"].offset != found["c"].offset
    assert found["a"].storage == found["b"].storage


def test_views_whose_values_are_not_those_of_the_storage_are_refused(tmp_path: Path) -> None:
    numbers = torch.complex(torch.randn(4), torch.randn(4))
    for name, tensor in {"negative": numbers.conj().imag, "conjugate": numbers.conj()}.items():
        torch.save({name: tensor}, tmp_path / name)
        with pytest.raises(PickleError, match="is no plain view of its storage"):
            read_tensors(tmp_path / name)


def test_nested_state_dicts_need_a_key(tmp_path: Path) -> None:
    path = tmp_path / "c.pt"
    torch.save({"model": {"w": torch.ones(2)}, "step": 3, "ema": {"model": {"w": torch.zeros(2)}}}, path)
    with pytest.raises(PickleError, match=r"'step'.*give key 'model' or 'ema.model'"):
        read_tensors(path)
    assert elements(read_tensors(path, "ema.model")["w"]) == expected(torch.zeros(2))
    with pytest.raises(PickleError, match="no 'models'"):
        read_tensors(path, "models")


class Evil:
    def __reduce__(self) -> Any:
        return os.system, ("echo evil",)


def _archive(path: Path, pickled: bytes, *, compress: bool = False, byteorder: bytes = b"little") -> None:
    kind = zipfile.ZIP_DEFLATED if compress else zipfile.ZIP_STORED
    with zipfile.ZipFile(path, "w", kind) as archive:
        archive.writestr("m/data.pkl", pickled)
        archive.writestr("m/byteorder", byteorder)
        archive.writestr("m/data/0", b"\0" * 8)


def _tensor(offset: int = 0, shape: tuple[int, ...] = (2,), strides: tuple[int, ...] = (1,), count: int = 2) -> bytes:
    """A pickle of {'w': tensor} written opcode by opcode."""

    def number(value: int) -> bytes:
        return b"J" + struct.pack("<i", value)

    sizes = [b"(" + b"".join(map(number, values)) + b"t" for values in (shape, strides)]
    storage = b"(X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\x000X\x03\0\0\0cpu" + number(count) + b"tQ"
    return (
        b"\x80\x02}X\x01\0\0\0wctorch._utils\n_rebuild_tensor_v2\n("
        + storage + number(offset) + sizes[0] + sizes[1] + b"\x89ccollections\nOrderedDict\n)RtRs."
    )  # fmt: skip


def _deep() -> bytes:
    return b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b"."


HOSTILE: dict[str, tuple[Callable[[], bytes], str]] = {
    "call of os.system": (lambda: pickle.dumps(Evil(), 2), "system, which is refused"),
    "getattr": (lambda: b"\x80\x02cbuiltins\ngetattr\n.", "builtins.getattr, which is refused"),
    "eval inside a dict": (lambda: b"\x80\x02}X\x01\0\0\0wcbuiltins\neval\ns.", "builtins.eval"),
    "stack global": (lambda: b"\x80\x04\x8c\x02os\x8c\x06system\x93.", "os.system"),
    "instance": (lambda: b"\x80\x02(ios\nsystem\n.", "INST is refused"),
    "object": (lambda: b"\x80\x02(cos\nsystem\no.", "os.system"),
    "new object": (lambda: b"\x80\x02ctorch\nSize\n)\x81.", "NEWOBJ is refused"),
    "extension registry": (lambda: b"\x80\x02\x82\x01.", "EXT1 is refused"),
    "call of a number": (lambda: b"\x80\x02K\x01)R.", "calls 1, which is refused"),
    "call of a storage class": (lambda: b"\x80\x02ctorch\nFloatStorage\n)R.", "FloatStorage', which is refused"),
    "state of a tensor": (lambda: _tensor()[:-2] + b"}bs.", "sets the state"),
    "no tensor": (lambda: pickle.dumps(3, 2), "holds a int"),
    "numpy array": (lambda: pickle.dumps(np.ones(2), 2), "numpy"),
    "empty": (lambda: b"", "no end|malformed"),
    "no stop": (lambda: b"\x80\x02}", "malformed|no end"),
    "two results": (lambda: b"\x80\x02}}.", "2 objects"),
    "pop of nothing": (lambda: b"\x80\x02s.", "too little"),
    "mark missing": (lambda: b"\x80\x02}u.", "mark is missing|mark"),
    "memo missing": (lambda: b"\x80\x02h\x05.", "malformed"),
    "deep nesting": (_deep, "holds a list"),
    "itself": (lambda: b"\x80\x02}q\0X\x01\0\0\0ah\0s.", "no tensors"),
    "behind the storage": (lambda: _tensor(offset=1), "reaches behind"),
    "stride behind the storage": (lambda: _tensor(strides=(2,)), "reaches behind"),
    "storage of another size": (lambda: _tensor(count=4), "has 8 bytes, the pickle says 16"),
    "negative offset": (lambda: _tensor(offset=-1), "do not fit"),
    "negative shape": (lambda: _tensor(shape=(-2,)), "no sizes"),
    "negative stride": (lambda: _tensor(strides=(-1,)), "no sizes"),
    "rank of strides": (lambda: _tensor(strides=(1, 1)), "do not fit"),
    "huge string": (lambda: b"\x80\x04\x8d" + struct.pack("<Q", 2**62) + b"a.", "malformed"),
    "control character in a name": (lambda: _tensor().replace(b"w", b"\n", 1), "control characters"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_pickles_are_refused_by_name(tmp_path: Path, case: str, capfd: pytest.CaptureFixture[str]) -> None:
    make, message = HOSTILE[case]
    path = tmp_path / "m.pt"
    _archive(path, make())
    with pytest.raises(PickleError, match=message) as caught:
        read_tensors(path)
    assert str(path) in str(caught.value)
    assert "evil" not in capfd.readouterr().out


def test_the_written_pickle_is_a_valid_one(tmp_path: Path) -> None:
    """The negative cases above differ from this one in one thing each."""
    _archive(tmp_path / "m.pt", _tensor())
    assert read_tensors(tmp_path / "m.pt")["w"].shape == (2,)


def test_hostile_archives(tmp_path: Path) -> None:
    path = tmp_path / "m.pt"
    _archive(path, _tensor(), compress=True)
    with pytest.raises(PickleError, match="compressed"):
        read_tensors(path)
    _archive(path, _tensor(), byteorder=b"big")
    with pytest.raises(PickleError, match="big-endian"):
        read_tensors(path)
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), path)
    with pytest.raises(PickleError, match="TorchScript"):
        read_tensors(path)
    path.write_bytes(b"PK\x03\x04 but no archive")
    with pytest.raises(PickleError, match="zip"):
        read_tensors(path)
    with pytest.raises(PickleError, match="cannot be read"):
        read_tensors(tmp_path / "nothing.pt")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("m/data.pkl", _tensor())
    with pytest.raises(PickleError, match="storage '0' is missing"):
        read_tensors(path)


@pytest.mark.parametrize("is_zip", [True, False])
def test_truncation_at_every_place_is_one_error(tmp_path: Path, is_zip: bool) -> None:
    whole = tmp_path / "m.pt"
    torch.save(OrderedDict(a=torch.arange(5.0), b=torch.arange(4)), whole, _use_new_zipfile_serialization=is_zip)
    data = whole.read_bytes()
    part = tmp_path / "part.pt"
    for length in range(0, len(data), 7):
        part.write_bytes(data[:length])
        with pytest.raises(PickleError):
            read_tensors(part)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_damaged_pickles_give_tensors_or_one_error(tmp_path: Path, data: st.DataObject) -> None:
    buffer = io.BytesIO()
    torch.save({"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(2, dtype=torch.bfloat16)}, buffer)
    with zipfile.ZipFile(buffer) as archive:
        pickled = bytearray(archive.read("archive/data.pkl"))
    for _ in range(data.draw(st.integers(1, 4))):
        pickled[data.draw(st.integers(0, len(pickled) - 1))] = data.draw(st.integers(0, 255))
    with suppress(PickleError):
        run(bytes(pickled), tmp_path)
    path = tmp_path / "m.pt"
    _archive(path, bytes(pickled))
    try:
        found = read_tensors(path)
    except PickleError:
        return
    for tensor in found.values():
        elements(tensor)
