"""State dicts of torch as sources, with the names and layouts of the code converter's table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from mappings.errors import UserError
from mappings.formats.weights_table import Expected, Module, WeightsTable
from migrate.weights.containers import table
from migrate.weights.containers.state_dict import read_state_dict
from migrate.weights.tensors import SourceTensor


def elements(source: SourceTensor, shape: tuple[int, ...]) -> Any:
    """The atom of a source tensor as fp32, gathered through its placements alone."""
    data = source.path.read_bytes()
    result = np.zeros(shape, np.float32)
    for placement in source.stored.arrangement.placements():
        for index in np.ndindex(*placement.extent):
            place = placement.offset + sum(i * s for i, s in zip(index, placement.strides, strict=True))
            value = np.frombuffer(data, "<f4", 1, source.offset + 4 * place)[0]
            result[tuple(a + b for a, b in zip(placement.start, index, strict=True))] = value
    return result


def write_table(path: Path, *tensors: Expected) -> Path:
    path.write_text(WeightsTable((), (Module("whole", "model", "GPT()", tensors),), ()).write())
    return path


def expect(name: str, shape: tuple[int, ...], **changes: Any) -> Expected:
    fields: dict[str, Any] = {"converted": name, "dtype": "F32", "permutation": None, "same_as": None, **changes}
    return Expected(name=name, shape=shape, **fields)


def test_views_in_a_pickle_keep_their_elements(tmp_path: Path) -> None:
    base = torch.randn(4, 6)
    tensors = {"t": base.t(), "c": base[:, 2:5], "r": base[1:3], "e": base[0].expand(3, 6), "s": torch.tensor(1.5)}
    torch.save(tensors, tmp_path / "m.pt")
    for name, entry in read_state_dict(tmp_path / "m.pt").items():
        assert np.array_equal(elements(entry.holding("x"), entry.shape), tensors[name].numpy()), name


@pytest.mark.parametrize("kind", ["pt", "safetensors", "pickled directory", "sharded pickles"])
def test_every_origin_gives_the_same_tensors(tmp_path: Path, kind: str) -> None:
    tensors = {"a.weight": torch.randn(3, 4), "b": torch.randn(2)}
    source = tmp_path
    if kind == "pt":
        source = tmp_path / "m.pt"
        torch.save(tensors, source)
    elif kind == "safetensors":
        source = tmp_path / "m.safetensors"
        save_file(tensors, source)
    elif kind == "pickled directory":
        torch.save(tensors, tmp_path / "pytorch_model.bin")
    else:
        for number, name in enumerate(tensors):
            torch.save({name: tensors[name]}, tmp_path / f"pytorch_model-{number}.bin")
        weight_map = {name: f"pytorch_model-{number}.bin" for number, name in enumerate(tensors)}
        (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": weight_map}))
    found = read_state_dict(source)
    assert set(found) == set(tensors)
    for name, entry in found.items():
        assert np.array_equal(elements(entry.holding("x"), entry.shape), tensors[name].numpy())


def test_a_pickled_index_that_lies_is_refused(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(1)}, tmp_path / "p.bin")
    index = tmp_path / "pytorch_model.bin.index.json"
    for weight_map, message in (
        ({"b": "p.bin"}, "disagrees with p.bin about a, b"),
        ({"a": "../p.bin"}, "outside"),
        ({"a": "q.bin"}, "missing"),
        ({}, "must map"),
    ):
        index.write_text(json.dumps({"weight_map": weight_map}))
        with pytest.raises(UserError, match=message):
            read_state_dict(tmp_path)


def test_sources_that_are_none(tmp_path: Path) -> None:
    for source, message in ((tmp_path / "x.pt", "no such file"), (tmp_path, "no weights")):
        with pytest.raises(UserError, match=message):
            read_state_dict(source)
    (tmp_path / "x.npz").touch()
    with pytest.raises(UserError, match="neither"):
        read_state_dict(tmp_path / "x.npz")
    save_file({"a": torch.ones(1)}, tmp_path / "x.safetensors")
    with pytest.raises(UserError, match="--key"):
        read_state_dict(tmp_path / "x.safetensors", "model")


def test_names_and_layouts_come_from_the_table(tmp_path: Path) -> None:
    tensors = {"w": torch.randn(3, 4), "n": torch.randn(4), "head": None}
    tensors["head"] = tensors["w"]
    torch.save(tensors, tmp_path / "m.pt")
    rows = (
        expect("w", (3, 4), converted="layer.weight", permutation=(1, 0)),
        expect("n", (4,), converted="norm.gamma"),
        expect("head", (3, 4), same_as="w"),
    )
    found = table.read(tmp_path / "m.pt", write_table(tmp_path / "t.json", *rows), module="whole")
    assert not found.findings
    (file,) = table.layout(found)
    assert [(t.name, t.dtype, t.arrangement.shape) for t in file.tensors] == [
        ("layer.weight", "F32", (4, 3)),
        ("norm.gamma", "F32", (4,)),
    ]
    assert {piece.atom for source in found.tensors for piece in source.stored.arrangement.pieces} == {"w", "n"}


def test_everything_that_is_wrong_is_listed_at_once(tmp_path: Path) -> None:
    tensors = {"w": torch.randn(3, 4), "n": torch.ones(4, dtype=torch.int64), "stranger": torch.ones(1)}
    torch.save(tensors, tmp_path / "m.pt")
    rows = (expect("w", (4, 3)), expect("n", (4,)), expect("gone", (2,)), expect("tied", (2,), same_as="gone"))
    found = table.read(tmp_path / "m.pt", write_table(tmp_path / "t.json", *rows), module="whole")
    assert [(f.code, f.tensor) for f in found.findings] == [
        ("W001", "gone"),
        ("W003", "w"),
        ("W004", "n"),
        ("W002", "stranger"),
    ]


def test_the_second_of_tied_names_is_enough(tmp_path: Path) -> None:
    torch.save({"head": torch.randn(3, 4)}, tmp_path / "m.pt")
    rows = (expect("w", (3, 4)), expect("head", (3, 4), same_as="w"))
    found = table.read(tmp_path / "m.pt", write_table(tmp_path / "t.json", *rows), module="whole")
    assert not found.findings
    assert [t.name for file in table.layout(found) for t in file.tensors] == ["w"]


def test_module_or_class_has_to_be_named(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(1)}, tmp_path / "m.pt")
    path = write_table(tmp_path / "t.json", expect("w", (1,)))
    with pytest.raises(UserError, match="give a module that was built \\('whole'\\)"):
        table.read(tmp_path / "m.pt", path)
    with pytest.raises(UserError, match="no built module"):
        table.read(tmp_path / "m.pt", path, module="other")
