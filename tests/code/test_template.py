"""Template expansion: binding, refusals, defaults, layout."""

from __future__ import annotations

from typing import Any

import libcst as cst
import pytest

from mappings.api import ApiTable, load_table
from mappings.api.row import parse_row
from migrate.code.rows.template import Expansion, Refusal, expand, expand_symbol, select


def expanded(signature: str, template: str, call: str, **fields: Any) -> str | Refusal:
    """Code of the expansion of a call by a made-up row, or the refusal."""
    entry = {"name": "torch.f", "status": "same", "signature": signature, "portable": template, **fields}
    node = cst.parse_expression(call)
    assert isinstance(node, cst.Call)
    receiver = node.func.value if isinstance(node.func, cst.Attribute) else None
    result = expand(parse_row(entry, "test"), node.args, receiver)
    return code(result.node) if isinstance(result, Expansion) else result


def code(node: cst.CSTNode) -> str:
    return cst.Module([]).code_for_node(node)


@pytest.mark.parametrize(
    ("signature", "template", "call", "wanted"),
    [
        # names, order, renamed keywords
        ("a, b", "mindspore.ops.f($b, axis=$a)", "f(1, b=2)", "ops.f(2, axis=1)"),
        ("input, dim=0", "mindspore.nn.F($input, axis=$dim)", "f(x, dim = -1)", "nn.F(x, axis=-1)"),
        ("input, dim=0, keepdim=False", "mindspore.f($input, $dim)", "f(x, axis=1)", "ms.f(x, 1)"),
        # absent arguments
        ("a, k=None", "mindspore.ops.f($a, k=$k)", "f(1)", "ops.f(1)"),
        ("a, b=3, c=4", "mindspore.ops.f($a, $b, $c)", "f(1)", "ops.f(1)"),
        ("a, b=3, c=4", "mindspore.ops.f($a, $b, $c)", "f(1, c=2)", "ops.f(1, 3, 2)"),
        ("a, b=3", "mindspore.ops.f($a, b=($b))", "f(1)", "ops.f(1, b=3)"),
        ("a, b=True", "mindspore.ops.f($a, int($b))", "f(1)", "ops.f(1, int(True))"),
        # a given argument that equals torch's default needs no place
        ("a, sorted=True", "mindspore.ops.f($a)", "f(1, sorted=True)", "ops.f(1)"),
        ("a, device=None", "mindspore.ops.f($a)", "f(1, device=cfg.device)", "ops.f(1)"),
        # receiver and precedence
        ("dim", "$self.shape[$dim]", "(a + b).size(-1)", "(a + b).shape[-1]"),
        ("other", "$self + 2 * $other", "x.f(a + b)", "x + 2 * (a + b)"),
        ("input", "-$input", "f(a if b else c)", "-(a if b else c)"),
        ("input", "$input.sum()", "f(lambda: x)", "(lambda: x).sum()"),
        ("input", "$input.bit_length()", "f(3)", "(3).bit_length()"),
        ("input", "mindspore.ops.f($input)", "f(x for x in y)", "ops.f((x for x in y))"),
        # varargs
        ("*shape", "$self.view($*shape)", "a.view(1, -1)", "a.view(1, -1)"),
        ("*shape", "$self.view($*shape)", "a.view((1, -1))", "a.view(1, -1)"),
        ("*shape", "$self.view($*shape)", "a.view(*s)", "a.view(*s)"),
        ("*shape", "mindspore.ops.zeros($(*shape))", "zeros(2, 3)", "ops.zeros((2, 3))"),
        ("*shape", "mindspore.ops.zeros($(*shape))", "zeros(*s, 3)", "ops.zeros((*s, 3))"),
        ("*shape", "mindspore.ops.zeros($(*shape))", "zeros(x.shape)", "ops.zeros(x.shape)"),
        ("*shape", "mindspore.ops.zeros($(*shape))", "zeros(3)", "ops.zeros((3,))"),
        ("*shape, dtype=None", "mindspore.ops.zeros($(*shape), dtype=$dtype)", "f(shape=(2,), dtype=d)",
            "ops.zeros((2,), dtype=d)"),
        # layout and comments
        ("a, b", "mindspore.ops.f($a, axis=$b)", "f(\n    x,  # left\n    b=1,  # right\n)",
            "ops.f(x,  # left\n    axis=1,  # right\n)"),
        ("a, b=0", "mindspore.ops.f($a)", "f(\n    x,  # left\n    b=0,\n)", "ops.f(x,  # left\n)"),
        ("a, b", "mindspore.ops.f($b, $a)", "f(x, y)", "ops.f(y, x)"),
    ],
)  # fmt: skip
def test_expansion(signature: str, template: str, call: str, wanted: str) -> None:
    result = expanded(signature, template, call, **({"drop": {"device": "any"}} if "device" in signature else {}))
    assert result == wanted
    cst.parse_expression(wanted)


@pytest.mark.parametrize(
    ("signature", "template", "call", "reason"),
    [
        ("a, out=None", "mindspore.ops.f($a)", "f(1, out=y)", "out=y of torch.f has no counterpart"),
        ("a", "mindspore.ops.f($a)", "f(1, b=2)", "no argument b"),
        ("a", "mindspore.ops.f($a)", "f(1, 2)", "takes 1 positional"),
        ("a, b", "mindspore.ops.f($a, $b)", "f(1)", "needs b"),
        ("a, b", "mindspore.ops.f($a, $b)", "f(1, 2, a=3)", "gets a twice"),
        ("a, b", "mindspore.ops.f($a, $b)", "f(*xs)", r"\*xs"),
        ("a, b", "mindspore.ops.f($a, $b)", "f(1, **options)", r"\*\*options"),
        ("a", "$a + $a", "f(g())", "evaluated 2 times"),
        ("a", "$self.f($a)", "f(1)", "needs an object"),
        ("a, *rest", "mindspore.ops.f($a)", "f(1, 2)", "rest of torch.f have no counterpart"),
    ],
)
def test_refusal(signature: str, template: str, call: str, reason: str) -> None:
    result = expanded(signature, template, call)
    assert isinstance(result, Refusal)
    import re

    assert re.search(reason, result.reason), result.reason


def test_drop_only_the_named_text() -> None:
    arguments = {
        "signature": "a, requires_grad=None",
        "template": "mindspore.f($a)",
        "drop": {"requires_grad": "False"},
    }
    assert expanded(call="f(1, requires_grad=False)", **arguments) == "ms.f(1)"
    assert isinstance(expanded(call="f(1, requires_grad=True)", **arguments), Refusal)


@pytest.mark.parametrize(
    ("condition", "accepted", "refused"),
    [
        ("given", "f(1, b=x)", "f(1)"),
        ("absent", "f(1)", "f(1, b=x)"),
        ("literal", "f(1, b=-2)", "f(1, b=x)"),
        ("integer type", "f(1, b=mindspore.int32)", "f(1, b=mindspore.float32)"),
        ("integer type", "f(1, b=torch.bool)", "f(1, b=kind)"),
    ],
)
def test_conditions(condition: str, accepted: str, refused: str) -> None:
    arguments: dict[str, Any] = {
        "signature": "a, b=None",
        "template": "mindspore.f($a, b=$b)",
        "when": {"b": condition},
    }
    assert isinstance(expanded(call=accepted, **arguments), str)
    assert isinstance(expanded(call=refused, **arguments), Refusal)


def test_twice_used_simple_expressions_are_allowed() -> None:
    assert expanded("a", "mindspore.ops.f($a, $a.dtype)", "f(self.x)") == "ops.f(self.x, self.x.dtype)"


def test_lost_comments_are_reported() -> None:
    row = parse_row({"name": "torch.f", "status": "same", "signature": "a, b=1", "portable": "mindspore.f($a)"}, "test")
    call = cst.parse_expression("f(\n    x,  # what\n    b=1,  # why\n)")
    assert isinstance(call, cst.Call)
    result = expand(row, call.args)
    assert isinstance(result, Expansion) and result.lost_comments == ("# why",)


def test_imports_and_aliases() -> None:
    row = parse_row(
        {
            "name": "torch.f",
            "status": "helper",
            "signature": "a",
            "portable": "ms_compat.tensors.f($a, mindspore.float32)",
        },
        "test",
    )
    call = cst.parse_expression("f(x)")
    assert isinstance(call, cst.Call)
    result = expand(row, call.args)
    assert isinstance(result, Expansion)
    assert result.imports == {"ms_compat.tensors.f", "mindspore.float32"} and result.row is row
    assert code(result.node) == "ms_compat.tensors.f(x, ms.float32)"
    result = expand(row, call.args, aliases={"mindspore": "mindspore", "ms_compat.tensors": "T"})
    assert isinstance(result, Expansion) and code(result.node) == "T.f(x, mindspore.float32)"


def test_overloads_in_order_and_all_reasons() -> None:
    rows = [
        parse_row({"name": "torch.f", "status": "same", "signature": s, "portable": p}, "test")
        for s, p in (("a", "mindspore.one($a)"), ("a, b", "mindspore.two($a, $b)"))
    ]
    table = ApiTable(rows)

    def chosen(source: str) -> Expansion | Refusal:
        call = cst.parse_expression(source)
        assert isinstance(call, cst.Call)
        return select(table, "torch.f", call.args)

    one, two, none = chosen("f(1)"), chosen("f(1, 2)"), chosen("f(1, 2, 3)")
    assert isinstance(one, Expansion) and code(one.node) == "ms.one(1)"
    assert isinstance(two, Expansion) and code(two.node) == "ms.two(1, 2)"
    assert isinstance(none, Refusal) and "; or " in none.reason
    unknown = select(table, "torch.g", ())
    assert isinstance(unknown, Refusal) and "not in the table" in unknown.reason


def test_symbols() -> None:
    table = load_table()
    module = expand_symbol(table.rows("torch.nn.Module")[0])
    assert isinstance(module, Expansion) and code(module.node) == "ms_compat.module.Module"
    dtype = expand_symbol(table.rows("torch.float32")[0])
    assert isinstance(dtype, Expansion) and code(dtype.node) == "ms.float32"
    assert isinstance(expand_symbol(table.rows("torch.cat")[0]), Refusal)


def test_ascend_falls_back_on_portable() -> None:
    fields = {"name": "torch.f", "status": "same", "signature": "a", "portable": "mindspore.p($a)"}
    both, one = parse_row({**fields, "ascend": "mindspore.mint.a($a)"}, "test"), parse_row(fields, "test")
    call = cst.parse_expression("f(x)")
    assert isinstance(call, cst.Call)
    for row, wanted in ((both, "mint.a(x)"), (one, "ms.p(x)")):
        result = expand(row, call.args, target="ascend")
        assert isinstance(result, Expansion) and code(result.node) == wanted
