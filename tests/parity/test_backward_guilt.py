"""Where gradients part, and who is guilty, on captures written by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from migrate.captures.store import Capture, CaptureWriter
from migrate.parity.backward.explanation import BackwardEvidence, explain_backward
from migrate.parity.backward.guilt import descend, guilty
from migrate.parity.backward.naming import ARRIVING, CELLS, HANDED, LOSS, OWN, owner, part, split
from migrate.parity.backward.passes import Pass
from migrate.parity.backward.running import explained
from migrate.parity.backward.suspects import suspects_of_cells
from migrate.parity.explain.descent import Place
from migrate.parity.explain.drawing import BACKWARD, draw
from migrate.parity.explain.tree import Tree
from migrate.parity.judgement import Judgement
from migrate.parity.modules import LOGITS
from migrate.parity.tolerances import Tolerances
from migrate.report import Stage, Verdict

PARTS = ("norm", "attention.q", "attention.v", "attention.o", "attention", "mlp.gate", "mlp.gate:choice", "mlp.experts")
MODULES = ["m.embed", *(f"m.{n}.{p}" for n in range(3) for p in (*PARTS, "mlp")), "m.norm", LOGITS]
TABLE = "m.embed.weight"
OWNED = [part(TABLE, LOGITS), part(TABLE, "m.embed"), *(f"m.{n}.norm.weight" for n in range(3)), "m.norm.weight"]
Values = Mapping[tuple[str, str], float]


def capture(out: Path, wrong: Values = {}, without: Sequence[str] = ()) -> Capture:  # noqa: B006
    """Ones, but for what is given by stage and name. What arrives at the table is not recorded."""
    out.mkdir(parents=True)
    writer = CaptureWriter(out, {})
    modules = [name for name in MODULES if name not in ("m.embed", LOGITS)]
    names = {"F": MODULES, ARRIVING: [*modules, LOGITS], HANDED: modules, OWN: OWNED}
    for stage, held in names.items():
        with writer.stage(stage) as tensors:
            for name in held:
                if name not in without:
                    tensors[name] = np.full((1, 3, 2), wrong.get((stage, name), 1.0), np.float32)
    return Capture.read(out)


def passed(tmp_path: Path, wrong: Values, without: Sequence[str] = ()) -> Pass:
    reference = capture(tmp_path / "reference")
    candidate = capture(tmp_path / "candidate", wrong, without)
    return Pass(Tree.of(MODULES), reference, candidate, Tolerances())


@pytest.mark.parametrize(
    ("wrong", "place", "what"),
    [
        ((HANDED, "m.1.norm"), Place("m.1.norm"), "what it hands back"),
        ((OWN, "m.1.norm.weight"), Place("m.1.norm"), "the gradient of m.1.norm.weight"),
        (
            (ARRIVING, "m.1.attention.v"),
            Place("m.1.attention", into="m.1.attention.o", behind="m.1.attention.v"),
            "the gradient it gives m.1.attention.v",
        ),
        ((HANDED, "m.1.attention"), Place("m.1.attention", into="m.1.attention.q"), "what it hands back"),
        ((ARRIVING, "m.1.mlp.gate"), Place("m.1.mlp.gate:choice"), "the gradient it gives m.1.mlp.gate"),
        ((ARRIVING, "m.1.mlp.gate:choice"), Place("m.1.mlp.experts"), "the gradient it gives m.1.mlp.gate:choice"),
        ((ARRIVING, "m.norm"), Place(LOGITS), "the gradient it gives m.norm"),
        ((ARRIVING, LOGITS), Place(LOSS), "the gradient it gives logits"),
        ((OWN, part(TABLE, LOGITS)), Place(LOGITS), f"the gradient of {TABLE}"),
        ((OWN, part(TABLE, "m.embed")), Place("m.embed"), f"the gradient of {TABLE}"),
    ],
    ids=["back", "parameter", "code", "code in front", "router", "experts", "head", "loss", "tied head", "table"],
)
def test_one_wrong_gradient_has_one_place(wrong: tuple[str, str], place: Place, what: str, tmp_path: Path) -> None:
    forced = passed(tmp_path, {wrong: 1.5})
    assert [(one.place, one.what) for one in guilty(forced)] == [(place, what)]
    first = descend(forced)
    assert first is not None and first.place == place


def test_the_one_nearest_to_the_loss_comes_first_and_like_layers_are_one(tmp_path: Path) -> None:
    wrong = {(HANDED, f"m.{number}.norm"): 1.5 for number in range(3)} | {(ARRIVING, "m.1.attention.o"): 1.5}
    found = guilty(passed(tmp_path, wrong))
    assert [(str(one.place), one.others) for one in found] == [
        ("m.2.norm", ["m.1.norm", "m.0.norm"]),
        ("m.1.attention, behind o", []),
    ]


def test_descent_stops_where_gradients_part_although_everything_earlier_differs(tmp_path: Path) -> None:
    at = MODULES.index("m.1.attention.v")
    # Everything earlier inherits; so does what contains it, on the way back.
    wrong = {(stage, name): 1.5 for stage in (ARRIVING, HANDED) for name in MODULES[: at + 1]}
    wrong |= {(HANDED, "m.1.attention"): 1.5, (OWN, "m.0.norm.weight"): 1.5}
    found = descend(passed(tmp_path, wrong))
    assert found is not None
    assert found.path == ("m.1.attention",)
    assert found.place == Place("m.1.attention", into="m.1.attention.o", behind="m.1.attention.v")


def test_nothing_differs_and_nobody_is_guilty(tmp_path: Path) -> None:
    both = passed(tmp_path, {})
    assert descend(both) is None and guilty(both) == []


def test_a_parameter_without_gradient_makes_its_module_guilty(tmp_path: Path) -> None:
    forced = passed(tmp_path, {}, without=["m.2.norm.weight"])
    (found,) = guilty(forced)
    assert (found.place.module, found.look.difference.problem) == ("m.2.norm", "the candidate has no gradient of it")


def test_what_inherits_is_an_heir_and_the_message_has_errors_index_and_values(tmp_path: Path) -> None:
    reference = capture(tmp_path / "r")
    at = MODULES.index("m.1.norm")
    free = capture(tmp_path / "free", {(HANDED, name): 1.5 for name in MODULES[: at + 1]})
    forced = capture(tmp_path / "forced", {(HANDED, "m.1.norm"): 1.5})
    result = explain_backward(BackwardEvidence(reference, free, forced, Tolerances()), lambda place: ["look here"])
    verdicts = {row["name"]: row["verdict"] for row in result.rows}
    assert verdicts["m.1.norm"] == "guilty" and verdicts["m.0.norm"] == "heir" and verdicts["m.2.norm"] == "agrees"
    assert verdicts["m.embed"] == "agrees", "its parameter is what is compared"
    lines = draw(result.rows, BACKWARD)
    assert lines[0].split() == ["module", "arriving", "made", "alone"]
    assert [line.split() for line in lines if "guilty" in line] == [
        ["m.1.norm", "0.0e+00", "5.0e-01", "5.0e-01", "<--", "guilty"]
    ]
    (found,) = result.findings
    assert (found.code, found.tensor) == ("P402", "m.1.norm")
    for text in (
        "what it hands back is wrong: relative difference 0.5, limit 0.0001",
        "worst element [0][0][0]: reference 1, candidate 1.5",
        "its parameters, alone: m.1.norm.weight 0",
        "error of the gradient of its output 0, error of the gradient it hands back 0.5",
    ):
        assert text in found.message
    assert found.fix.endswith("Look first at: (1) look here.")


def test_rounding_that_adds_up_is_nobodys_fault(tmp_path: Path) -> None:
    reference, forced = capture(tmp_path / "r"), capture(tmp_path / "forced")
    free = capture(tmp_path / "free", {(HANDED, "m.0.norm"): 1.001})
    (found,) = explain_backward(BackwardEvidence(reference, free, forced, Tolerances()), lambda place: ()).findings
    assert (found.code, found.tensor) == ("P404", "m.0.norm")


def test_backward_passes_that_do_not_run_are_said_to() -> None:
    judgement = Judgement(Stage("G gradients", Verdict.FAIL, "differs", 1))
    assert explained(judgement, "MindSpore: no process", lambda place: ()).rows == []
    assert [(one.code, "MindSpore: no process" in one.message) for one in judgement.findings] == [("P405", True)]


def test_owners_of_parameters() -> None:
    modules = ["m.1.mlp", "m.1.mlp.experts", "m.embed"]
    assert owner("m.1.mlp.experts.up", modules, LOGITS) == "m.1.mlp.experts"
    assert owner("m.1.mlp.scale", modules, LOGITS) == "m.1.mlp"
    assert owner("lm_head.weight", modules, LOGITS) == LOGITS
    assert owner(part("m.embed.weight", LOGITS), modules, "") == LOGITS
    assert split(part("m.embed.weight", "m.embed")) == ("m.embed.weight", "m.embed")


def test_what_cuts_gradients_in_the_source_is_listed(tmp_path: Path) -> None:
    (tmp_path / "candidate").mkdir()
    source = tmp_path / "layer.py"
    source.write_text(
        "def best(x):\n    return ops.stop_gradient(x)\n\ndef other(x):\n    return ops.stop_gradient(x)\n\n"
        "class Layer(Cell):\n    def construct(self, x):\n        return best(x)\n\n"
        "    def bprop(self, x, out, dout):\n        return dout\n"
    )
    (tmp_path / "candidate" / CELLS).write_text(f'{{"m.0.norm": [["{source.as_posix()}", "package.layer.Layer"]]}}')
    listed = suspects_of_cells(tmp_path)
    assert listed(Place("m.0.norm")) == [
        "package.layer:11 Layer has a backward pass of its own",
        "package.layer:2 best has a stop_gradient",
    ]
    assert listed(Place("m.1.norm")) == []
