"""`parity code`: an honest conversion passes every stage; faults in its text are found at their stage and place."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from mappings.errors import UserError
from mappings.formats.weights_table import FILE as TABLE
from migrate.cli import app
from migrate.code.command import convert
from migrate.parity.repository.command import code
from migrate.parity.repository.sketch import sketch_of
from migrate.parity.stages import TITLES
from migrate.report import Report, Severity, Verdict

ROOT = Path(__file__).parents[2]
SOURCE = Path(__file__).parent / "small_repository"
STAGES = ("W", "F", "L", "G", "U")
X = {"floats": [3, 7, 6]}
OPTIMIZER = {"module": "net", "build": "make_optimizer(model)", "clip": "clip(model)"}
RECIPES = [
    {"name": "stack", "module": "net", "build": "Stack(6, 2)", "inputs": [X], "optimizer": OPTIMIZER},
    {"name": "gate", "module": "net", "build": "Gate()", "inputs": [X]},
    {"name": "table", "module": "net", "build": "Table()", "inputs": [X]},
    {
        "name": "classifier",
        "module": "net",
        "build": "Classifier()",
        "inputs": [{"floats": [5, 6]}, {"ids": [5], "below": 4}],
        "loss": "loss",
    },
    # Of the three scores the first is masked.
    {"name": "masked", "module": "net", "build": "Masked()", "inputs": [X, {"range": [3, 7, 3], "dtype": "bool"}]},
]


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The conversion of `small_repository`."""
    out = tmp_path_factory.mktemp("converted") / "out"
    convert(SOURCE, out)
    return out


def recipes(folder: Path, names: list[str] | None = None) -> Path:
    path = folder / "recipes.yaml"
    chosen = [recipe for recipe in RECIPES if names is None or recipe["name"] in names]
    path.write_text(yaml.safe_dump({"modules": chosen}), encoding="utf-8")
    return path


def outcome(report: Report, name: str) -> dict[str, Verdict]:
    """Verdict of each stage of a module."""
    titles = {f"{name}: {title}": stage for stage, title in TITLES.items()}
    return {titles[stage.name]: stage.verdict for stage in report.stages if stage.name in titles}


def failing(report: Report, name: str) -> str | None:
    """The first stage of a module that does not pass."""
    found = outcome(report, name).items()
    return next((stage for stage, verdict in found if verdict not in (Verdict.PASS, Verdict.SKIPPED)), None)


def named(report: Report, name: str) -> set[tuple[str, str | None]]:
    """(code, tensor) of the errors of a module."""
    errors = [found for found in report.findings if found.severity is Severity.ERROR]
    return {(found.code, found.tensor) for found in errors if found.message.startswith(f"{name}: ")}


@pytest.mark.parametrize("state", ["init", pytest.param("trained", marks=pytest.mark.slow)])
def test_an_honest_conversion_passes(converted: Path, tmp_path: Path, state: str) -> None:
    # By default U is among the stages, as a recipe names its optimizer.
    stages = None if state == "init" else STAGES
    report = code(converted, original=SOURCE, modules=recipes(tmp_path), stages=stages, state=state)
    assert report.exit_code == 0, [found.message for found in report.findings]
    assert outcome(report, "stack") == dict.fromkeys(STAGES, Verdict.PASS)
    compared = {stage.name: stage.compared for stage in report.stages}
    assert compared["stack: W weights"] == compared["stack: G gradients"] - 1 == 6  # and the gradient of the input
    assert compared["stack: F activations"] == 2 * 2 + 1 + 1  # mixers with their norms, the head, the output
    assert compared["stack: U updates"] == 2 * 6
    rows = report.facts["tensors"]
    outputs = [row["name"] for row in rows if row["module"] == "stack" and row["stage"] == "F"]
    assert outputs == ["layers.0.norm", "layers.0", "layers.1.norm", "layers.1", "head", "(output)"]
    # Minus infinity stands apart, so that it hides no other score.
    masked = {row["name"] for row in rows if row["module"] == "masked" and row["stage"] == "F"}
    assert masked == {"score", "(output)", "(output) (signs beyond 1e30)", "(output):1"}
    losses = {stage.name: stage.figures["compared"] for stage in report.stages if stage.name.endswith("L loss")}
    assert losses["classifier: L loss"] == "the loss of the module"
    assert losses["stack: L loss"] == "a seeded projection of the outputs"


PLANTS = {
    "rsqrt(ops.mean(x.pow(2), -1, True) + self.eps)": "rsqrt(ops.mean(x.pow(2), -1, True) + 1e-4)",
    "gate = ops.sigmoid(self.inner(x))": "gate = ops.stop_gradient(ops.sigmoid(self.inner(x)))",
    "/ 100.0 **": "/ 110.0 **",
    "loss = losses.cross_entropy(logits, labels)": "loss = 1.000005 * losses.cross_entropy(logits, labels)",
    "masked_fill(~keep": "masked_fill(keep",
}


@pytest.fixture(scope="module")
def planted(converted: Path, tmp_path_factory: pytest.TempPathFactory) -> Report:
    """The report on a copy with every fault of `PLANTS`."""
    folder = tmp_path_factory.mktemp("planted")
    shutil.copytree(converted, folder / "out")
    text = (folder / "out" / "net.py").read_text(encoding="utf-8")
    for right, wrong in PLANTS.items():
        assert right in text
        text = text.replace(right, wrong)
    (folder / "out" / "net.py").write_text(text, encoding="utf-8")
    report = code(folder / "out", original=SOURCE, modules=recipes(folder))
    assert report.exit_code == 1
    (folder / "report.json").write_text(report.to_json(), encoding="utf-8")
    assert Report.from_json(folder / "report.json").exit_code == 1
    return report


def test_another_eps_is_found_in_each_norm_and_nowhere_else(planted: Report) -> None:
    assert failing(planted, "stack") == "F"
    assert named(planted, "stack") == {("P201", "layers.0.norm"), ("P203", "layers.0.norm")}
    guilty = next(found for found in planted.findings if found.code == "P203" and found.tensor == "layers.0.norm")
    assert (guilty.file, guilty.line) == ("net.py", 8)
    assert "layers.1.norm" in guilty.message and "eps=1e-05" in guilty.fix
    verdicts = {row["name"]: row["verdict"] for row in planted.facts["modules"] if row["module"] == "stack"}
    assert (verdicts["layers.1.norm"], verdicts["layers.1"], verdicts["head"]) == ("guilty", "heir", "heir")


def test_a_detached_gradient_is_found_at_its_parameters(planted: Report) -> None:
    assert failing(planted, "gate") == "G"
    assert named(planted, "gate") >= {("P401", "inner.weight"), ("P401", "inner.bias")}
    assert any("zero everywhere" in found.message for found in planted.findings if found.code == "P401")


def test_a_buffer_made_otherwise_is_found_though_loading_would_hide_it(planted: Report) -> None:
    assert failing(planted, "table") == "W"
    assert named(planted, "table") == {("P101", "table")}


def test_a_scaled_loss_is_found_where_it_is_made(planted: Report) -> None:
    # The loss is an output as well, and within the bound of outputs; the bound of losses is tighter.
    assert failing(planted, "classifier") == "L"
    assert named(planted, "classifier") == {("P301", "loss")}


def test_a_mask_turned_round_is_found(planted: Report) -> None:
    assert failing(planted, "masked") == "F"
    assert ("P201", "(output) (signs beyond 1e30)") in named(planted, "masked")


def edited(converted: Path, folder: Path, change: Callable[[str], str], file: str = "net.py") -> Path:
    """A copy of the conversion with one file changed."""
    shutil.copytree(converted, folder / "out")
    path = folder / "out" / file
    text = path.read_text(encoding="utf-8")
    assert change(text) != text
    path.write_text(change(text), encoding="utf-8")
    return folder / "out"


def test_shapes_submodules_optimizers_and_builds_that_differ(converted: Path, tmp_path: Path) -> None:
    def change(text: str) -> str:
        text = text.replace("Linear(6, 6)", "Linear(6, 6, bias=False)")
        text = text.replace("self.head = Linear(6, 4)", "self.head = Linear(6, 4)\n        raise ValueError('no')")
        text = text.replace("return x + self.table", "return x.transpose(0, 1, 2) + self.table")
        text = text.replace("self.score = Linear(6, 3)", "self.score = Linear(6, 3)\n        self.more = Module()")
        text = text.replace("self.score(x)", "self.score(self.more(x))")
        text = text.replace("weight_decay=0.1", "weight_decay=0.0")
        return text.replace("class Masked", "Module.construct = lambda self, x: x\n\n\nclass Masked")

    out = edited(converted, tmp_path, change)
    report = code(out, original=SOURCE, modules=recipes(tmp_path), stages=STAGES)
    assert report.exit_code == 2  # a module does not build
    assert failing(report, "gate") == "W" and named(report, "gate") == {("P002", "inner.bias")}
    assert failing(report, "classifier") == "W"
    reasons = {stage.name: stage.message for stage in report.stages}
    assert "the module does not build: net.py:" in reasons["classifier: W weights"]
    assert "MindSpore has, unexpectedly, 1 of 4 tensors: more" in reasons["masked: F activations"]
    assert named(report, "masked") == {("P002", "more")}
    assert failing(report, "stack") == "U"
    assert ("P601", "layers.0.norm.weight in step 1") in named(report, "stack")
    assert failing(report, "table") is None  # what changes nothing gives no alarm


def test_an_original_that_is_gone_or_another_one(converted: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"the original 'small_repository' is neither .*; give it with --original"):
        code(converted, modules=recipes(tmp_path))
    with pytest.raises(UserError, match="no such directory"):
        code(converted, original=tmp_path / "gone", modules=recipes(tmp_path))
    with pytest.raises(UserError, match=r"has no net\.py, which the report says was converted"):
        code(converted, original=tmp_path, modules=recipes(tmp_path))
    with pytest.raises(UserError, match="is the converted repository itself"):
        code(converted, original=converted, modules=recipes(tmp_path))
    changed = tmp_path / "changed"
    shutil.copytree(SOURCE, changed)
    (changed / "net.py").write_text("\n" + (SOURCE / "net.py").read_text(encoding="utf-8"), encoding="utf-8")
    with pytest.raises(UserError, match=r"net\.py:8 has no class Norm.*the original changed since"):
        code(converted, original=changed, modules=recipes(tmp_path))


def test_reports_edited_by_hand(converted: Path, tmp_path: Path) -> None:
    cases: list[tuple[str, Callable[[str], str], str]] = [
        ("report.json", lambda text: text[:-20], "no msmigrate report"),
        ("report.json", lambda text: text.replace('"code"', '"scan"', 1), "reports `scan`, not a conversion"),
        (TABLE, lambda text: text.replace("net.Gate", "net.Gates"), "has no class Gates.*convert again"),
        (TABLE, lambda text: text.replace('"kind": "parameter"', '"kind": "thing"', 1), "malformed"),
        ("net.py", lambda text: text.replace("class Gate(", "class Gating("), "has no class Gate"),
    ]
    for number, (file, change, message) in enumerate(cases):
        (tmp_path / str(number)).mkdir()
        out = edited(converted, tmp_path / str(number), change, file)
        with pytest.raises(UserError, match=message):
            code(out, original=SOURCE, modules=recipes(tmp_path))


def test_a_name_edited_in_the_report_is_missed_on_the_other_side(converted: Path, tmp_path: Path) -> None:
    def change(text: str) -> str:
        body = json.loads(text)
        gate = next(entry for entry in body["classes"] if entry["name"] == "net.Gate")
        gate["tensors"][0]["converted"] = "inner.gamma"
        gate["tensors"][1]["name"] = "inner.beta"
        return json.dumps(body)

    out = edited(converted, tmp_path, change, TABLE)
    report = code(out, original=SOURCE, modules=recipes(tmp_path, ["gate"]), stages=["W"])
    assert report.exit_code == 1
    # Nothing was loaded into the tensor that the report calls otherwise.
    assert {found.tensor for found in report.findings if found.code == "P101"} == {"inner.weight"}
    notes = {found.tensor for found in report.findings if found.code == "P102"}
    assert notes == {"inner.bias", "inner.beta"}


def test_bad_requests_are_user_errors(converted: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"net\.Gate, net\.Table, .* could be built from defaults.*--sketch"):
        code(converted, original=SOURCE)
    with pytest.raises(UserError, match="'X'"):
        code(converted, original=SOURCE, modules=recipes(tmp_path), stages=["X"])
    with pytest.raises(UserError, match="--state 'worn'"):
        code(converted, original=SOURCE, modules=recipes(tmp_path), state="worn")
    with pytest.raises(UserError, match="no recipe names its `optimizer`"):
        code(converted, original=SOURCE, modules=recipes(tmp_path, ["gate"]), stages=["U"])


def test_the_sketch_is_a_recipe_file_to_fill_in(converted: Path, tmp_path: Path) -> None:
    text = sketch_of(converted, SOURCE)
    body = {entry["name"]: entry for entry in yaml.safe_load(text)["modules"]}
    assert list(body) == [f"net.{name}" for name in ("Norm", "Mixer", "Stack", "Gate", "Table", "Classifier", "Masked")]
    assert body["net.Stack"]["build"] == "Stack(dim=FILL_IN, depth=FILL_IN)"
    assert body["net.Classifier"]["inputs"] == ["FILL_IN_x", "FILL_IN_labels"]
    assert "# net.py:8; defaults: eps=1e-5" in text
    (tmp_path / "sketch.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=r"net\.Norm: still says FILL_IN"):
        code(converted, original=SOURCE, modules=tmp_path / "sketch.yaml")
    shown = CliRunner().invoke(app, ["parity", "code", str(converted), "--original", str(SOURCE), "--sketch"])
    assert (shown.exit_code, shown.stdout) == (0, text)
