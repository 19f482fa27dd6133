"""Descent and guilt on captures written by hand."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from migrate.captures.store import Capture, CaptureWriter
from migrate.parity.explain.alone import guilty
from migrate.parity.explain.descent import Place, descend
from migrate.parity.explain.drawing import draw
from migrate.parity.explain.explanation import Evidence, explain
from migrate.parity.explain.looking import Looking, mask_of
from migrate.parity.explain.tree import ROOT, Tree
from migrate.parity.recording import INPUTS
from migrate.parity.tolerances import Tolerances

MASK = np.array([[1, 1, 0]])
PARTS = ("norm", "attention.q", "attention.o", "attention", "mlp.up", "mlp.down", "mlp")
Values = Mapping[str, float]


def names(layers: int) -> list[str]:
    """Modules in the order in which they end."""
    inner = [f"m.layers.{number}{part}" for number in range(layers) for part in (*(f".{p}" for p in PARTS), "")]
    return ["m.embed", *inner, "m.norm", "logits"]


def capture(out: Path, modules: list[str], inputs: Values = {}, outputs: Values = {}) -> Capture:  # noqa: B006
    """Ones everywhere, but for what is given."""
    out.mkdir(parents=True)
    writer = CaptureWriter(out, {})
    for stage, wrong in (("F", outputs), (INPUTS, inputs)):
        with writer.stage(stage) as tensors:
            for name in modules:
                if stage == "F" or name not in ("m.embed", "logits"):
                    tensors[name] = np.full((1, 3, 2), wrong.get(name, 1.0), np.float32)
    return Capture.read(out)


def looking(reference: Capture, candidate: Capture) -> tuple[Looking, Looking]:
    inputs, outputs = (Looking(reference, candidate, stage, MASK, Tolerances()) for stage in (INPUTS, "F"))
    return inputs, outputs


def behind(modules: list[str], first: str) -> dict[str, float]:
    """A difference that everything from a module on has."""
    return dict.fromkeys(modules[modules.index(first) :], 1.5)


@pytest.mark.parametrize(
    ("first", "arriving", "path", "place"),
    [
        ("m.layers.3.norm", [], ["m.layers.3", "m.layers.3.norm"], Place("m.layers.3.norm")),
        (
            "m.layers.3.attention.o",
            ["m.layers.3.attention.o"],
            ["m.layers.3", "m.layers.3.attention"],
            Place("m.layers.3.attention", "m.layers.3.attention.o", "m.layers.3.attention.q"),
        ),
        ("m.layers.3", [], ["m.layers.3"], Place("m.layers.3", behind="m.layers.3.mlp")),
        ("m.layers.0.norm", ["m.layers.0"], [], Place(ROOT, "m.layers.0", "m.embed")),
        ("logits", [], ["logits"], Place("logits")),
        ("m.embed", [], ["m.embed"], Place("m.embed")),
    ],
    ids=["a module", "code before a submodule", "code behind the last one", "code of the model", "head", "table"],
)
def test_the_descent_ends_where_the_difference_begins(
    first: str, arriving: list[str], path: list[str], place: Place, tmp_path: Path
) -> None:
    modules = names(5)
    wrong = behind(modules, first)
    inputs = {**{name: 1.5 for name in wrong if name > "m.layers.3" and "." in name}, **dict.fromkeys(arriving, 1.5)}
    # The first one and what contains it are given what is right.
    for name in (first, *path):
        if name not in arriving:
            inputs.pop(name, None)
    left, right = capture(tmp_path / "l", modules), capture(tmp_path / "r", modules, inputs, wrong)
    found = descend(Tree.of(modules), *looking(left, right))
    assert found is not None
    assert (list(found.path), found.place) == (path, place)


def test_the_cost_follows_the_path_and_not_the_model(tmp_path: Path) -> None:
    modules = names(130)
    assert len(modules) > 1000
    wrong = behind(modules, "m.layers.4.mlp.up")
    inputs = {name: 1.5 for name in list(wrong)[1:] if name not in ("m.layers.4", "m.layers.4.mlp")}
    left, right = capture(tmp_path / "l", modules), capture(tmp_path / "r", modules, inputs, wrong)
    looks = looking(left, right)
    found = descend(Tree.of(modules), *looks)
    assert found is not None and found.place.module == "m.layers.4.mlp.up"
    # Embedding and five layers, three parts of the layer, one of the MLP; inputs of the three that were entered.
    assert (len(looks[1].seen), len(looks[0].seen)) == (6 + 3 + 1, 3)


def test_nothing_differs_and_nobody_is_guilty(tmp_path: Path) -> None:
    modules = names(2)
    left, right = capture(tmp_path / "l", modules), capture(tmp_path / "r", modules)
    assert descend(Tree.of(modules), *looking(left, right)) is None
    assert guilty(Tree.of(modules), *looking(left, right)) == []


def test_faults_of_like_layers_are_one_and_others_stay_apart(tmp_path: Path) -> None:
    modules = names(12)
    norms = [f"m.layers.{number}.norm" for number in range(12)]
    wrong = {**dict.fromkeys(norms, 1.1), "m.layers.7.mlp.up": 1.2}
    arriving = {"m.layers.10.attention.o": 0.9}
    left, right = capture(tmp_path / "l", modules), capture(tmp_path / "r", modules, arriving, wrong)
    found = guilty(Tree.of(modules), *looking(left, right))
    assert [(str(one.place), len(one.others)) for one in found] == [
        ("m.layers.0.norm", 11),
        ("m.layers.7.mlp.up", 0),
        ("m.layers.10.attention, between q and o", 0),
    ]


def test_what_is_laid_out_otherwise_is_not_judged(tmp_path: Path) -> None:
    left = capture(tmp_path / "l", ["a", "b"])
    (tmp_path / "r").mkdir()
    writer = CaptureWriter(tmp_path / "r", {})
    for stage in ("F", INPUTS):
        with writer.stage(stage) as tensors:
            tensors |= {"a": np.ones((1, 3, 2), np.float32), "b": np.ones((2, 3), np.float32)}
    right = Capture.read(tmp_path / "r")
    inputs, outputs = looking(left, right)
    assert outputs("b") is None and inputs("b") is None and outputs("a") is not None
    rows = explain(Evidence(left, right, right, MASK, Tolerances()), lambda place: ()).rows
    assert [(row["name"], row["verdict"]) for row in rows] == [("a", "agrees"), ("b", "not judged")]


def test_a_module_that_does_not_run_is_guilty_and_what_is_computed_without_it_is_not(tmp_path: Path) -> None:
    modules = names(2)
    ran = [name for name in modules if name not in ("m.layers.1.attention.q", "m.norm")]
    wrong = {"m.layers.1.attention.o": 1.5}
    left = capture(tmp_path / "l", modules)
    right = capture(tmp_path / "r", ran, wrong, {"logits": 1.5, "m.layers.1.attention": 1.5})
    tree, looks = Tree.of(modules), looking(left, right)
    assert [str(one.place) for one in guilty(tree, *looks)] == ["m.layers.1.attention.q", "m.norm"]
    found = explain(Evidence(left, right, right, MASK, Tolerances()), lambda place: ()).findings
    assert "the candidate does not run it" in found[0].message
    first = descend(tree, *looks)
    assert first is not None and first.place == Place("m.norm"), "nothing that goes into layer 1 or out of it differs"


def test_the_mask_follows_tokens_in_one_axis() -> None:
    assert mask_of((1, 3, 5), MASK) is MASK
    flat = mask_of((3, 5), MASK)
    assert flat is not None and flat.tolist() == [1, 1, 0]
    assert mask_of((7, 7), MASK) is None


def test_the_drawing_shows_the_way_and_counts_the_rest(tmp_path: Path) -> None:
    modules = names(40)
    wrong = {"m.layers.20.mlp.up": 1.2}
    left, right = capture(tmp_path / "l", modules), capture(tmp_path / "r", modules, {}, wrong)
    lines = draw(explain(Evidence(left, right, right, MASK, Tolerances()), lambda place: ()).rows)
    assert len(lines) < 20
    assert [line.split()[0] for line in lines if "guilty" in line] == ["up"]
    assert sum(int(line.split()[1]) for line in lines if "..." in line) + len(lines) - 1 - sum(
        "..." in line for line in lines
    ) == len(modules)
