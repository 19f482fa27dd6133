"""`parity code` on converted code with faults planted: each is found at its stage, its module or parameter is named."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from code_plants import DECODER, QUICK, CodePlant

from migrate.code.command import convert
from migrate.parity.repository.command import code
from migrate.parity.stages import TITLES
from migrate.report import Report, Severity, Verdict
from migrate.sides.recipes import Recipe

SOURCE = Path(__file__).parent / "planted_repository" / "decoder.py"
STAGES = ("W", "F", "L", "G", "U")
KEEP = {"ids": [3, 9], "below": 3, "dtype": "bool"}  # two of three positions
IDS = {"ids": [3, 9], "below": 31}


def judged(folder: Path, names: Sequence[str]) -> Report:
    """Converts a copy of the decoder for each plant, plants it there, and compares all of them."""
    original, out = folder / "original", folder / "out"
    original.mkdir()
    for name in names:
        (original / f"{name}.py").write_text(SOURCE.read_text(encoding="utf-8"), encoding="utf-8")
    convert(original, out)
    for name in names:
        plant(out / f"{name}.py", DECODER[name])
    recipes = [
        Recipe(name, "Decoder(31)", [IDS, KEEP, IDS], name=name, loss="loss",
               optimizer={"module": name, "build": DECODER[name].optimizer})
        for name in names
    ]  # fmt: skip
    return code(out, original=original, recipes=recipes, stages=STAGES)


def plant(path: Path, planted: CodePlant) -> None:
    text = path.read_text(encoding="utf-8")
    for right, wrong in planted.changes.items():
        assert text.count(right) >= 1, right
        text = text.replace(right, wrong)
    path.write_text(text, encoding="utf-8")


def check(report: Report, name: str, planted: CodePlant) -> None:
    """The stage that fails first, and what is named there."""
    stages = {title: f"{name}: {words}" for title, words in TITLES.items()}
    verdicts = {stage.name: stage.verdict for stage in report.stages}
    found = {title: verdicts[words] for title, words in stages.items() if words in verdicts}
    errors = [f for f in report.findings if f.severity is Severity.ERROR and f.message.startswith(f"{name}: ")]
    if planted.stage is None:
        assert found == dict.fromkeys(STAGES, Verdict.PASS) and errors == []
        return
    before = STAGES[: STAGES.index(planted.stage)]
    assert found == {
        **dict.fromkeys(STAGES, Verdict.SKIPPED), **dict.fromkeys(before, Verdict.PASS), planted.stage: Verdict.FAIL
    }  # fmt: skip
    assert (planted.code, planted.tensor) in {(found.code, found.tensor) for found in errors}
    if planted.stage == "F":  # no heir is called guilty: nothing of another kind of place
        kinds = {kind_of(found.tensor) for found in errors if found.code in ("P203", "P204")}
        assert kinds == {kind_of(planted.tensor)}


def kind_of(tensor: str | None) -> str:
    """A module without the number of its layer, and of its call."""
    return ".".join("*" if part.isdigit() else part for part in (tensor or "").partition("@")[0].split("."))


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Report:
    return judged(tmp_path_factory.mktemp("quick"), QUICK)


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Report:
    return judged(tmp_path_factory.mktemp("others"), [name for name in DECODER if name not in QUICK])


@pytest.mark.parametrize("name", QUICK)
def test_a_fault_of_each_kind_is_found_and_located(quick: Report, name: str) -> None:
    check(quick, name, DECODER[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in DECODER if name not in QUICK])
def test_every_other_fault_is_found_and_located(others: Report, name: str) -> None:
    check(others, name, DECODER[name])


@pytest.mark.slow
def test_decay_that_is_not_wanted_is_seen_at_exactly_the_vectors(others: Report) -> None:
    rows = [r for r in others.facts["tensors"] if (r["module"], r["stage"]) == ("decay_on_norms", "U")]
    vectors = {r["name"] for r in rows if len(r["worst"]) < 2}
    assert vectors and {r["name"] for r in rows if r["differs"]} == vectors
