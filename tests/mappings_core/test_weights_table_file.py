"""The table of weights as a file: what was written is what is read, and what breaks its form is refused."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mappings.errors import UserError
from mappings.formats.table_values import every, lacking, value_of
from mappings.formats.weights_table import (
    FILE,
    FORMAT,
    Argument,
    Class,
    Expected,
    Module,
    NotKnown,
    Tensor,
    Tie,
    WeightsTable,
    Wrapper,
)

WEIGHT = Tensor(
    "blocks.{i}.w",
    "layers.{i}.w",
    "parameter",
    True,
    ("n", "2 * n"),
    "F32",
    "[out, in]",
    (1, 0),
    ("i < last",),
    "m.py:3",
)
NET = Class(
    name="m.Net",
    file="m.py",
    line=1,
    arguments=(Argument("n", None), Argument("depth", "2"), Argument("last", "9"), Argument("names", "[]")),
    tensors=(WEIGHT, Tensor("t", "t", "buffer", False, None, None, "as torch", None, (), "m.py:4")),
    repeated={"i": "depth"},
    tied=(Tie("blocks.{i}.w", "w", ("depth > 2",)),),
    not_known=(),
)
WRAPPERS = (
    Wrapper("torch.compile", "_orig_mod", False, ("t.py:1",)),
    Wrapper("torch.nn.DataParallel", "module", True, ("t.py:2",)),
)
TABLE = WeightsTable(
    (NET, Class("m.Other", "m.py", 9, (), (), {}, (), (NotKnown("m.py:9", "what f(x) gives"),))),
    (Module("whole", "m", "Net(3)", (Expected("w", "w", (2, 0), "BF16", None, "v"),)),),
    WRAPPERS,
)


def written(tmp_path: Path, body: dict[str, Any]) -> Path:
    path = tmp_path / FILE
    path.write_text(json.dumps(body), encoding="utf-8")
    return path


def test_what_was_written_is_read(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(TABLE.write(), encoding="utf-8")
    assert WeightsTable.read(tmp_path / FILE) == TABLE


def test_the_state_of_one_object() -> None:
    state = NET.state({"n": 3})
    assert list(state) == ["blocks.0.w", "blocks.1.w"]
    assert state["blocks.1.w"] == Expected("blocks.1.w", "layers.1.w", (3, 6), "F32", (1, 0), None)
    assert [tensor.same_as for tensor in NET.state({"n": 3, "depth": 3}).values()] == ["w"] * 3
    assert list(NET.state({"n": 3, "depth": 3, "last": 1})) == ["blocks.0.w"]
    for arguments, words in (({}, "value of n"), ({"m": 1}, "no argument 'm'")):
        with pytest.raises(UserError, match=words):
            NET.state(arguments)
    with pytest.raises(UserError, match="what f"):
        TABLE.of_class("m.Other").state({})
    with pytest.raises(UserError, match=r"no class of the table; it has m\.Net, m\.Other"):
        TABLE.of_class("Net")
    with pytest.raises(UserError, match="no built module"):
        TABLE.of_module("m.Net")


@pytest.mark.parametrize(
    ("names", "want"),
    [
        (["module.a", "module.b.module.c"], ["a", "b.module.c"]),
        (["module.a", "b"], ["module.a", "b"]),  # an attribute of that name
        (["_orig_mod.a", "_orig_mod.b"], ["a", "b"]),
        (["module._orig_mod.a"], ["a"]),
        (["_orig_mod.module.a"], ["a"]),
        (["b._orig_mod.a", "c"], ["b.a", "c"]),  # a part of the model is compiled
        ([], []),
    ],
)
def test_names_without_wrappers(names: list[str], want: list[str]) -> None:
    assert list(TABLE.unwrapped(names).values()) == want
    assert list(WeightsTable((), (), ()).unwrapped(names).values()) == names


def test_names_that_become_one_are_refused() -> None:
    with pytest.raises(UserError, match="_orig_mod"):
        TABLE.unwrapped(["a", "_orig_mod.a"])


def spoiled(*path: str | int, value: Any) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(TABLE.write())
    place: Any = body
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return body


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "format is not"),
        ({"format": FORMAT}, "malformed"),
        (spoiled("format", value="msmigrate-weights-table-1"), "convert the repository again"),
        (spoiled("classes", 0, "tensors", 0, "kind", value="weight"), "kind 'weight'"),
        (spoiled("classes", 0, "tensors", 0, "dtype", value="float32"), "dtype 'float32'"),
        (spoiled("classes", 0, "tensors", 0, "permutation", value=[0, 0]), "permutation"),
        (spoiled("classes", 0, "tensors", 0, "shape", value=[3, 6]), "shape"),
        (spoiled("classes", 0, "tensors", 0, "more", value=1), "malformed"),
        (spoiled("modules", 0, "tensors", 0, "shape", value=["n"]), "shape"),
        (spoiled("modules", 0, "tensors", 0, "shape", value=[-1, True]), "shape"),
        (spoiled("wrappers", 0, value=3), "malformed"),
    ],
)
def test_what_breaks_the_form_is_refused(tmp_path: Path, body: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        WeightsTable.read(written(tmp_path, body))


def test_all_that_expressions_lack_is_told_at_once() -> None:
    config = {"n": 3}
    expressions = ["config.n * config.d", "config.h if config.tied else other", "max(config.n, i)", "config.d"]
    assert lacking(expressions, {"config": config, "i": 0}) == ["config.d", "config.tied", "config.h", "other"]
    assert lacking(expressions, {"config": SimpleNamespace(n=3), "i": 0}) == ["other"]  # an object may compute them


def test_values_that_are_not_arithmetic_are_refused() -> None:
    assert value_of("max(a.b, 2) // 2 if not c else -d['x']", {"a": SimpleNamespace(b=7), "c": 0, "d": {}}) == 3
    for expression in ("open('x')", "a.b()", "missing + 1", "[x for x in a]", "__import__('os')", "a.__class__"):
        with pytest.raises(UserError, match="is not known"):
            value_of(expression, {"a": 1})
    for expression in ("1 // 0", "9 ** 9 ** 9", "[][1]", "None + 1", "int('x')", "1 +"):
        with pytest.raises(UserError, match="has no value"):
            value_of(expression, {})


def test_a_count_counts_only_where_its_conditions_hold() -> None:
    repeated = {"i": "n", "j": "i + 1"}
    assert every(["a.{i}"], ["n is not None"], repeated, {"n": None}) == []
    assert [names for names, _ in every(["{i}.{j}"], ["j != 1"], repeated, {"n": 2})] == [("0.0",), ("1.0",)]
