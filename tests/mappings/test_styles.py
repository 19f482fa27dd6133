"""Call styles: what is generated from a signature, and that a row that is wrong in one style only is found."""

from __future__ import annotations

import pytest
import row_cases
import row_styles

from mappings.api import ApiTable, load_table
from mappings.api.row import Row, parse_row


def row(name: str, signature: str, portable: str, **more: object) -> Row:
    entry = {"name": name, "status": "same", "signature": signature, "portable": portable, "returns": "tensor", **more}
    return parse_row(entry, "planted")


def test_five_styles_of_a_function() -> None:
    found = row_styles.styles(
        "torch.sum(x, 1, keepdim=True)", row("torch.sum", "input, dim=None, keepdim=False", "f()")
    )
    assert found == {
        "positional": "torch.sum(x, 1, True)",
        "keyword": "torch.sum(input=x, dim=1, keepdim=True)",
        "shuffled": "torch.sum(keepdim=True, dim=1, input=x)",
        "defaults omitted": "torch.sum(x)",
        "variables": "v_1 = 1\nv_2 = True\nresult = torch.sum(x, v_1, keepdim=v_2)",
    }


def test_keyword_only_arguments_stay_keywords() -> None:
    found = row_styles.styles("torch.f(x, b=2, a=1)", row("torch.f", "input, *, a=0, b=0", "f()"))
    assert found["positional"] == "torch.f(x, a=1, b=2)" and found["keyword"] == "torch.f(input=x, a=1, b=2)"


def test_a_gap_ends_the_positional_arguments() -> None:
    found = row_styles.styles("torch.f(c=3, input=x)", row("torch.f", "input, b=2, c=1", "f()"))
    assert found["positional"] == "torch.f(x, c=3)"


def test_shapes_as_one_sequence_and_starred() -> None:
    found = row_styles.styles("x.view(2, 6)", row("torch.Tensor.view", "*shape", "$self.view($*shape)"))
    assert found["one sequence"] == "x.view((2, 6))"
    assert found["starred"] == "shape = (2, 6)\nresult = x.view(*shape)"


def test_conditions_of_an_overload_are_kept() -> None:
    planted = row("torch.f", "input, dim=None, keepdim=False", "f()", when={"dim": "given"})
    found = row_styles.styles("torch.f(x, 1, True)", planted)
    assert found["defaults omitted"] == "torch.f(x, dim=1)"


def test_ambiguous_sources_have_no_styles() -> None:
    planted = row("torch.sum", "input, dim=None", "f()")
    assert row_styles.styles("torch.sum(x) + torch.sum(y)", planted) == {}
    assert row_styles.styles("torch.sum(*[x])", planted) == {}


@pytest.mark.parametrize(
    ("portable", "styles"),
    [
        ("mindspore.ops.flatten($input, start_dim=1)", {"defaults omitted"}),
        ("mindspore.ops.flatten($input, start_dim=$start_dim)", {"defaults omitted"}),
        ("mindspore.ops.flatten($input, start_dim=($start_dim))", set()),
    ],
)
def test_a_row_that_forgets_torchs_default(portable: str, styles: set[str]) -> None:
    """MindSpore's default of start_dim is 1, torch's is 0: only a call that omits it shows the difference."""
    planted = row("torch.flatten", "input, start_dim=0", portable, drop={"start_dim": "any"})
    table = ApiTable([planted, *(r for r in load_table() if r.name != "torch.flatten")])
    entry = row_cases.Entry("torch.flatten", 0, "torch.flatten(z, 1)")
    assert row_cases.judge(entry, table).problems == []
    assert {problem.partition(":")[0] for problem in row_cases.judge_styles(entry, table).problems} == styles
