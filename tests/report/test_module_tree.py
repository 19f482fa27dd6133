"""The tree of modules on a page, and the chart of tensors by layer."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from migrate.report import Report, Stage, Verdict
from migrate.report.html import render
from migrate.report.layer_chart import layer_chart
from migrate.report.module_tree import Node, module_tree, percent


def row(name: str, depth: int, verdict: str = "agrees", output: float | str = 1e-7, **more: Any) -> dict[str, Any]:
    return {"name": name, "depth": depth, "verdict": verdict, "input": 1e-7, "output": output, "alone": 0.0,
            "limit": 1e-5, **more}  # fmt: skip


def layer(number: int, verdict: str) -> list[dict[str, Any]]:
    size = 1e-7 if verdict == "agrees" else 1e-3
    name = f"model.layers.{number}"
    return [row(name, 0, verdict, size), *(row(f"{name}.{part}", 1, verdict, size) for part in ("norm", "mlp"))]


def model(layers: int, guilty: int) -> list[dict[str, Any]]:
    """A fault in the MLP of one layer; everything behind it inherits."""
    rows = [one for number in range(layers) for one in layer(number, "agrees" if number < guilty else "heir")]
    at = next(one for one in rows if one["name"] == f"model.layers.{guilty}.mlp")
    at |= {"verdict": "guilty", "place": f"{at['name']}, behind up", "suspects": ["config.hidden_act = 'silu'"]}
    return rows


def find(nodes: list[Node], name: str) -> Node:
    todo = list(nodes)
    while todo:
        node = todo.pop()
        if node.name == name:
            return node
        todo += node.children
    raise AssertionError(name)


def test_the_way_to_a_guilty_module_is_open_and_everything_else_is_folded() -> None:
    nodes = module_tree({"modules": model(400, 300)})
    assert [node.short for node in nodes] == [
        "model.layers.0 to model.layers.299 (300)",
        "model.layers.300",
        "model.layers.301 to model.layers.399 (99)",
    ]
    assert [node.is_open for node in nodes] == [False, True, False]
    assert [node.verdict for node in nodes] == ["agrees", "heir", "heir"]
    assert len(nodes[0].children) == 300 and nodes[2].inside == {"heir": 198}
    guilty = find(nodes, "model.layers.300.mlp")
    assert (guilty.short, guilty.badge, guilty.place) == ("mlp", "fail", "model.layers.300.mlp, behind up")


def test_a_folded_line_shows_the_largest_errors_behind_it() -> None:
    rows = [row(f"layers.{number}", 0, output=1e-7 * (number + 1)) for number in range(8)]
    (fold,) = module_tree({"modules": rows})
    assert fold.errors[1] is not None and fold.errors[1].text == "8.0e-07"


def test_without_an_explanation_the_outputs_of_stage_f_make_the_tree() -> None:
    names = ["model.embed", "model.layers.0.mlp.up", "model.layers.0.mlp", "model.layers.0", "logits"]
    tensors = [{"stage": "F", "name": name, "relative": 1e-7, "limit": 1e-5, "differs": False} for name in names]
    tensors.append({"stage": "G", "name": "model.embed.weight", "relative": 1.0, "limit": 1e-4, "differs": True})
    nodes = module_tree({"tensors": tensors})
    assert [node.name for node in nodes] == ["model.embed", "model.layers.0", "logits"]
    assert find(nodes, "model.layers.0.mlp.up").short == "up"
    assert nodes[0].errors[0] is None and nodes[0].errors[2] is None
    assert module_tree({}) == []


def test_each_of_several_compared_modules_is_a_root() -> None:
    def tensor(module: str, name: str, stage: str = "F", relative: float = 1e-7) -> dict[str, Any]:
        return {"module": module, "stage": stage, "name": name, "relative": relative, "limit": 1e-5, "differs": False}

    names = [f"part {number}" for number in range(7)]
    tensors = [one for name in names for one in (tensor(name, "up"), tensor(name, "(output)", relative=3e-7))]
    tensors += [tensor(name, "up.weight", "G") for name in names] + [tensor("last", "gone", "W")]
    explained = [row("up", 0, "guilty", 1e-2, module="part 6"), row("(output)", 0, "heir", 2e-2, module="part 6")]
    nodes = module_tree({"tensors": tensors, "modules": explained})
    assert [node.short for node in nodes] == ["part 0 to part 5 (6)", "part 6"]
    assert [node.verdict for node in nodes] == ["agrees", "differs"] and nodes[1].is_open
    assert [error and error.text for error in nodes[1].errors] == [None, "2.0e-02", None]
    assert [child.name for child in find(nodes, "part 3").children] == ["up", "(output)"]
    assert len(module_tree({"tensors": tensors[:2]})) == 2, "one module is no root of itself"
    gradients = [one for one in tensors if one["stage"] == "G"]
    chart = str(layer_chart(gradients, "relative difference", "module"))
    assert re.findall(r'class="tick"[^>]*middle">([^<]+)<', chart) == names
    assert "part 0: up.weight: 1e-07" in chart


@pytest.mark.parametrize(
    ("value", "place"), [(0.0, "0"), (1e-12, "0.0"), (1e-9, "0.0"), (1e-6, "33.3"), (1.0, "100.0"), (50.0, "100.0")]
)
def test_bars_are_logarithmic(value: float, place: str) -> None:
    assert percent(value) == place
    assert percent(float("nan")) == percent(float("inf")) == "100" or percent(float("inf")) == "100.0"


def test_values_that_are_no_numbers_are_over_their_limit() -> None:
    (node,) = module_tree({"modules": [row("a", 0, "differs", "inf")]})
    error = node.errors[1]
    assert error is not None and error.over and float(error.bar) == 100


def test_the_chart_has_a_dot_per_tensor_in_the_order_of_the_layers() -> None:
    rows = [
        {"name": f"model.layers.{number}.{part}.weight", "relative": 1e-6, "limit": 1e-4, "differs": number == 11}
        for number in (11, 2)
        for part in ("a", "<b>")
    ]
    rows.append({"name": "model.embed_tokens.weight", "relative": "inf", "limit": 1e-4, "differs": True})
    rows.append({"name": "model.norm.weight", "relative": 0.0, "limit": 1e-4, "differs": False})
    chart = str(layer_chart(rows, "relative difference"))
    assert re.findall(r'class="tick"[^>]*middle">([^<]+)<', chart) == ["in", "2", "11", "out"]
    assert chart.count("<circle") == 6 and chart.count('"point bad"') == 3
    assert chart.count('class="limit"') == 4
    assert "<b>" not in chart and "&lt;b&gt;" in chart
    assert layer_chart([], "x") is None


def test_a_page_of_a_thousand_modules_needs_nothing_else_and_stays_small(tmp_path: Path) -> None:
    report = Report("parity model", "m", stages=[Stage("F activations", Verdict.FAIL, "differs", 3)])
    report.facts = {"modules": model(350, 3), "tensors": [], "seed": 0}
    text = render([report], tmp_path / "page.html").read_text()
    assert "Look first at" in text and "config.hidden_act" in text
    assert "The fault: model.layers.3.mlp, behind up" in text
    assert text.count('class="module"') == 1050 + 1  # the modules, and one line for those behind the fault
    assert len(text) < 1_500_000
    assert not re.findall(r"(?:src|href)=\"(?!#)", text) and "http" not in text and "<script" not in text


def test_gradients_at_modules_have_a_tree_of_their_own(tmp_path: Path) -> None:
    report = Report("parity model", "m", stages=[Stage("G gradients", Verdict.FAIL, "differs", 3)])
    report.facts = {"modules backward": model(7, 3), "tensors": []}
    text = render([report], tmp_path / "page.html").read_text()
    assert "Gradients at modules" in text and "<span>Arriving</span>" in text and "<h3>Modules</h3>" not in text
    assert "The fault: model.layers.3.mlp, behind up" in text
