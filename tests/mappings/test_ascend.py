"""Templates for Ascend, which cannot run here: their names exist, their calls bind, the converter writes them."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import libcst as cst
import mindspore
import pytest

from mappings.api import Row, load_table
from migrate.api.names import ASCEND_STANDING, describe, text
from migrate.code.command import convert
from migrate.code.rows.template import Expansion, Refusal, expand

ROWS = [row for row in load_table() if row.ascend is not None]
PATHS = {"torch.Tensor": "x", "torch.nn.functional": "torch.nn.functional", "torch": "torch"}


def call_of(expression: cst.BaseExpression) -> cst.Call:
    """The call of a MindSpore function in an expansion; `f(x)[0]` is one as well."""
    node = expression.value if isinstance(expression, cst.Subscript) else expression
    assert isinstance(node, cst.Call)
    return node


def function_of(node: cst.BaseExpression) -> Callable[..., Any]:
    """What a dotted name of MindSpore or of a helper stands for.

    Raises:
        AttributeError: the installed MindSpore has no such name.
    """
    first, *rest = cst.Module([]).code_for_node(node).split(".")
    found: Any = mindspore
    if first == "ms_compat":  # a helper that calls the kernel where it fits, with a test of its own
        found = importlib.import_module(f"ms_models.compat.{rest.pop(0)}")
    else:
        assert first == "mindspore"
    for part in rest:
        found = getattr(found, part)
    return found  # type: ignore[no-any-return]


def bound(expression: cst.BaseExpression) -> inspect.BoundArguments:
    """The arguments of an expansion by the parameters of MindSpore's function.

    Raises:
        TypeError: the function does not take them.
    """
    call = call_of(expression)
    signature = inspect.signature(function_of(call.func))
    assert not any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values()), "any call would bind"
    values = [(a.keyword.value if a.keyword else None, cst.Module([]).code_for_node(a.value)) for a in call.args]
    return signature.bind(*(v for k, v in values if k is None), **{k: v for k, v in values if k is not None})


def written(row: Row, arguments: list[cst.Arg]) -> Expansion:
    receiver = cst.Name("x") if row.name.startswith("torch.Tensor.") else None
    found = expand(row, arguments, receiver, "ascend", {})
    assert isinstance(found, Expansion), found
    return found


def styles(row: Row) -> dict[str, list[cst.Arg]]:
    """Calls of a row's torch name: what is required, and everything that its portable template places."""
    assert row.signature is not None and row.portable is not None
    parameters = row.signature.parameters.values()
    required = [p.name for p in parameters if p.default is p.empty or row.when.get(p.name) == "given"]
    every = [p.name for p in parameters if f"${p.name}" in row.portable]
    return {
        "required": [named(name) for name in required],
        "every by keyword": [named(name) for name in every],
        "every reversed": [named(name) for name in reversed(every)],
    }


def named(name: str) -> cst.Arg:
    return cst.Arg(cst.Name(f"given_{name}"), keyword=cst.Name(name))


def test_there_are_templates_for_the_common_operations() -> None:
    names = {row.name for row in ROWS}
    assert {
        f"torch.nn.functional.{n}" for n in ("layer_norm", "rms_norm", "cross_entropy", "scaled_dot_product_attention")
    } <= names
    assert all(row.portable and "ms_compat." in row.portable for row in ROWS)  # else the one spelling would do


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.name}{row.signature}")
def test_every_call_binds(row: Row) -> None:
    for style, arguments in styles(row).items():
        found = bound(written(row, arguments).node)
        given = {cst.Module([]).code_for_node(a.value) for a in arguments} - {
            f"given_{name}" for name, allowed in row.drop.items() if allowed == "any"
        }
        placed = " ".join(str(value) for value in found.arguments.values())
        assert all(value in placed for value in given), f"{style}: {given} against {found.arguments}"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.name}{row.signature}")
def test_the_converter_writes_it_for_ascend_alone(row: Row, tmp_path: Path) -> None:
    space, _, name = row.name.rpartition(".")
    arguments = [cst.Module([]).code_for_node(argument) for argument in styles(row)["every by keyword"]]
    call = f"{PATHS[space]}.{name}({', '.join(arguments)})"
    parameters = ", ".join(f"{a.partition('=')[2]}" for a in arguments)
    source = f"import torch\n\n\ndef f(x: torch.Tensor, {parameters}):\n    return {call}\n"
    texts = {}
    for target in ("portable", "ascend"):
        repo = tmp_path / target / "in"
        repo.mkdir(parents=True)
        (repo / "a.py").write_text(source, encoding="utf-8")
        report = convert(repo, tmp_path / target / "out", target=target)
        assert not report.findings, report.findings
        texts[target] = (tmp_path / target / "out" / "a.py").read_text(encoding="utf-8")
    assert row.ascend is not None
    path, _, function = row.ascend.partition("(")[0].rpartition(".")
    assert "ms_compat" in texts["portable"]
    if path.startswith("ms_compat."):
        assert f"{path.removeprefix('ms_compat.')}" in texts["ascend"]
        assert f"import {path.rpartition('.')[2]}" not in texts["portable"]
    else:
        assert f".{function}(" in texts["ascend"] and "ms_compat" not in texts["ascend"]


def test_what_is_not_measured_is_said() -> None:
    (row,) = describe("torch.nn.functional.layer_norm")["rows"]
    assert row["ascend_standing"] == ASCEND_STANDING
    assert ASCEND_STANDING in text(describe("torch.nn.functional.layer_norm"))
    assert ASCEND_STANDING not in text(describe("torch.abs"))


@pytest.mark.parametrize(
    "template", ["mindspore.mint.matmull($input, $other)", "mindspore.mint.matmul($input, y=$other)"]
)
def test_a_wrong_template_is_found(template: str) -> None:
    (row,) = load_table().rows("torch.matmul")
    wrong = Row(row.name, row.status, row.signature, row.portable, template)
    with pytest.raises((AttributeError, TypeError)):
        bound(written(wrong, styles(wrong)["required"]).node)


def test_an_argument_without_a_place_is_refused() -> None:
    (row,) = load_table().rows("torch.matmul")
    wrong = Row(row.name, row.status, row.signature, row.portable, "mindspore.mint.matmul($input)")
    assert isinstance(expand(wrong, styles(wrong)["required"], None, "ascend", {}), Refusal)
