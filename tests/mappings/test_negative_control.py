"""The factory must see a wrong row: each planted fault has to be found."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import row_running
from row_conversion import NotConverted, convert

from mappings.api import ApiTable, Row, load_table
from mappings.api.row import parse_row


def table_with(entry: dict[str, object]) -> ApiTable:
    planted = parse_row(entry, "planted")
    others: Iterable[Row] = (row for row in load_table() if row.name != planted.name)
    return ApiTable([planted, *others])


def case(source: str, name: str, portable: str, signature: str) -> row_running.Case:
    table = table_with(
        {"name": name, "status": "same", "signature": signature, "portable": portable, "returns": "tensor"}
    )
    return row_running.Case(source, convert(source, name, table), f"planted {name}")


@pytest.mark.parametrize(
    ("source", "name", "portable", "signature", "found"),
    [
        ("torch.sqrt(p)", "torch.sqrt", "mindspore.ops.rsqrt($input)", "input", "values"),
        ("torch.var(x)", "torch.var", "mindspore.ops.var($input)", "input", "values"),
        (
            "torch.full((2,), 1.5)",
            "torch.full",
            "mindspore.ops.full($size, $fill_value)",
            "size, fill_value",
            "data type",
        ),
        ("torch.argsort(x)", "torch.argsort", "mindspore.ops.argsort($input)", "input", "data type"),
        (
            "torch.unsqueeze(x, 1)",
            "torch.unsqueeze",
            "mindspore.ops.expand_dims($input, 0)",
            "input, dim",
            "no counterpart",
        ),
        ("torch.flatten(z)", "torch.flatten", "mindspore.ops.flatten($input)", "input", "shape"),
        ("torch.equal(x, x)", "torch.equal", "mindspore.ops.equal($input, $other)", "input, other", "against"),
        (
            "torch.split(x, 2)",
            "torch.split",
            "mindspore.ops.split($tensor, $size - 1)",
            "tensor, size",
            "items against",
        ),
    ],
)
def test_wrong_value_shape_type_or_structure(source: str, name: str, portable: str, signature: str, found: str) -> None:
    try:
        problems = row_running.check_value(case(source, name, portable, signature), {}, {})
    except NotConverted as refusal:
        problems = [str(refusal)]
    assert found in "\n".join(problems)


def test_cut_gradient() -> None:
    wrong = case("torch.exp(x)", "torch.exp", "mindspore.ops.stop_gradient(mindspore.ops.exp($input))", "input")
    assert row_running.check_value(wrong, {}, {}) == []
    assert "gradient of x" in "\n".join(row_running.check_gradient(wrong))


def test_unseeded_and_misshapen_random_numbers() -> None:
    constant = case("torch.randn(6000)", "torch.randn", "mindspore.ops.ones($(*size))", "*size")
    assert "two draws" in "\n".join(row_running.check_random(constant))
    wide = case("torch.randn(6000)", "torch.randn", "ms_compat.random.randn($*size) * 2", "*size")
    assert "deviation" in "\n".join(row_running.check_random(wide))


def test_unknown_name_is_not_converted() -> None:
    with pytest.raises(NotConverted, match=r"torch\.no_such_thing"):
        convert("torch.no_such_thing(x)", "torch.exp", load_table())
