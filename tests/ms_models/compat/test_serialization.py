"""Checkpoint files: torch's are read without torch, ours are read by torch, everything else is refused by name."""

from __future__ import annotations

import collections
import io
import os
import zipfile
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
import torch

from ms_models.compat import layers, serialization
from ms_models.compat.serialization import UnsupportedObjectError

TYPES = ["float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool", "complex64"]


def bits(value: Any) -> bytes:
    """The elements of a tensor of either framework; bfloat16 as float32, which is exact."""
    if isinstance(value, torch.Tensor):
        value = value.detach()
        return (value.float() if value.dtype is torch.bfloat16 else value).numpy().tobytes()
    return (value.astype(ms.float32) if value.dtype == ms.bfloat16 else value).asnumpy().tobytes()


@pytest.mark.parametrize("name", TYPES)
def test_every_type_both_ways(name: str, tmp_path: Path) -> None:
    wanted = (torch.randn(3, 5) * 10).to(getattr(torch, name))
    torch.save({"x": wanted, "t": wanted.T, "part": wanted[1:, ::2], "one": wanted[0, 0]}, tmp_path / "a.pt")
    read = serialization.load(tmp_path / "a.pt")
    for key, value in (("x", wanted), ("t", wanted.T), ("part", wanted[1:, ::2]), ("one", wanted[0, 0])):
        assert read[key].shape == tuple(value.shape)
        assert bits(read[key]) == bits(value.contiguous())
    serialization.save(read, tmp_path / "b.pt")
    again = torch.load(tmp_path / "b.pt", weights_only=True)
    assert again["x"].dtype == wanted.dtype
    assert all(torch.equal(again[key], value) for key, value in (("x", wanted), ("t", wanted.T), ("one", wanted[0, 0])))


def test_training_checkpoint_of_torch(tmp_path: Path) -> None:
    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.AdamW([{"params": [model.weight]}, {"params": [model.bias], "weight_decay": 0.0}], lr=0.1)
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    torch.save(
        {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 7, "config": {"a": [1, None]}},
        tmp_path / "c.pt",
    )
    read = serialization.load(str(tmp_path / "c.pt"))
    assert (
        isinstance(read["model"], collections.OrderedDict) and read["step"] == 7 and read["config"] == {"a": [1, None]}
    )
    cell = layers.Linear(4, 3)
    cell.load_state_dict(read["model"])
    assert bits(cell.weight) == bits(model.weight) and bits(cell.bias) == bits(model.bias)
    assert bits(read["optimizer"]["state"][1]["exp_avg_sq"]) == bits(optimizer.state[model.bias]["exp_avg_sq"])


def test_plain_values_and_shared_tensors(tmp_path: Path) -> None:
    weight = ms.Parameter(ms.ops.ones((2, 2)), name="w")
    value = {
        "a": weight,
        "b": weight,
        "n": [1, 2.5, True, None, "text", b"\x00\xff", 1 + 2j],
        "t": (1, (2,)),
        "s": {3},
        "d": ms.float16,
    }
    serialization.save(value, tmp_path / "x.pt")
    read = torch.load(tmp_path / "x.pt", weights_only=True)
    assert read["a"].data_ptr() == read["b"].data_ptr()
    assert read["n"] == value["n"] and read["t"] == (1, (2,)) and read["s"] == {3} and read["d"] is torch.float16
    with zipfile.ZipFile(tmp_path / "x.pt") as archive:
        assert sum("/data/" in name for name in archive.namelist()) == 1
    own = serialization.load(tmp_path / "x.pt")
    assert own["n"] == value["n"] and own["d"] == ms.float16


def test_parameters_devices_and_empty_tensors_of_torch() -> None:
    file = io.BytesIO()
    torch.save(
        [
            torch.nn.Parameter(torch.ones(2), requires_grad=False),
            torch.device("cuda:1"),
            torch.zeros(0, 3),
            torch.Size([4]),
        ],
        file,
    )
    file.seek(0)
    parameter, device, empty, size = serialization.load(file)
    assert isinstance(parameter, ms.Parameter) and not parameter.requires_grad
    assert device == "cuda:1" and empty.shape == (0, 3) and size == (4,)


class Runs:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch ran",)


class Harmless:
    """Any class of the program."""


@pytest.mark.parametrize(("bad", "named"), [(Runs(), "system"), (np.float64(1.5), "numpy"), (Harmless(), "Harmless")])
def test_other_classes_in_a_file_are_refused(
    bad: object, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"model": torch.ones(2), "bad": bad}, "x.pt")
    with pytest.raises(UnsupportedObjectError, match=named):
        serialization.load("x.pt")
    assert not Path("ran").exists()


@pytest.mark.parametrize("bad", [Harmless(), np.float64(1.5), print, ms.nn.ReLU()])
def test_what_could_not_be_loaded_is_not_saved(bad: object, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedObjectError, match=r"\['a'\]\[1\] is a"):
        serialization.save({"a": [1, bad]}, tmp_path / "x.pt")
    assert not (tmp_path / "x.pt").exists()


def test_damaged_files(tmp_path: Path) -> None:
    (tmp_path / "text.pt").write_text("no archive")
    with pytest.raises(ValueError, match="not a zip checkpoint"):
        serialization.load(tmp_path / "text.pt")
    torch.save({"x": torch.ones(64)}, tmp_path / "good.pt")
    with zipfile.ZipFile(tmp_path / "good.pt") as source, zipfile.ZipFile(tmp_path / "short.pt", "w") as target:
        for name in source.namelist():
            data = source.read(name)
            target.writestr(name, data[:-4] if name.endswith("data/0") else data)
    with pytest.raises(ValueError, match="storage 0"):
        serialization.load(tmp_path / "short.pt")
    torch.save({"x": torch.ones(64)}, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    with pytest.raises(ValueError, match=r"torch 1\.6"):
        serialization.load(tmp_path / "old.pt")
