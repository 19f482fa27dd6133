"""Training steps that run as graphs: what the source forbids, the switch, and comparisons of runs that allow it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mappings.errors import UserError
from migrate.code.command import convert
from migrate.code.execution import find_steps, switched_on
from migrate.code.findings import finding
from migrate.code.verify.programs import read_programs

PROJECTS = Path(__file__).parent / "projects"

MODEL = """
import itertools

import torch
from torch import nn

NUMBERS = itertools.count(1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 3)
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        return self.second(self.drop(torch.tanh(self.first(x))))


def penalty(x):
    return x.abs().max().item()


def drifting():
    return next(NUMBERS)  # which no look at the state can see
"""

TRAIN = """
import sys

import torch
import torch.nn.functional as F

from model import Net, drifting, penalty


def fit(model, optimizer, steps):
    for step in range(steps):
        x, y = torch.randn(6, 4), torch.randint(0, 3, (6,))
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()


def fit_with_penalty(model, optimizer, steps):
    for step in range(steps):
        x, y = torch.randn(6, 4), torch.randint(0, 3, (6,))
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y) * penalty(x)
        loss.backward()
        optimizer.step()


def fit_drifting(model, optimizer, steps):
    for step in range(steps):
        x, y = torch.randn(6, 4), torch.randint(0, 3, (6,))
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y) * drifting()
        loss.backward()
        optimizer.step()


def never(model, x):
    loss = model(x).sum()
    loss.backward()


if __name__ == "__main__":
    net = Net()
    adam = torch.optim.Adam(net.parameters(), lr=1e-2)
    for run in (fit, fit_with_penalty, fit_drifting):
        run(net, adam, int(sys.argv[1]))
    torch.save(net.state_dict(), "net.pt")
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "repository"
    root.mkdir()
    (root / "model.py").write_text(MODEL, encoding="utf-8")
    (root / "train.py").write_text(TRAIN, encoding="utf-8")
    return root


def test_steps_are_compiled_where_a_run_shows_the_same_numbers(repository: Path, tmp_path: Path) -> None:
    recipes, out = tmp_path / "recipes.yaml", tmp_path / "out"
    recipes.write_text('programs:\n  - {run: train.py, arguments: ["4"]}\n', encoding="utf-8")
    report = convert(repository, out, modules=recipes)
    steps = {step["line"]: (step["mode"], step["reason"]) for step in report.facts["execution"]}
    good, read, drift, unreached = (steps[line] for line in sorted(steps))
    dropout = "compared without dropout, whose masks each call of a graph draws anew"
    assert good == ("compiled", dropout)
    assert read[0] == "eager" and read[1].startswith("model.py:") and "read back" in read[1]
    # The planted fault: a constant that changes where nobody looks. Only the comparison sees it.
    assert drift[0] == "eager" and drift[1].startswith("compiled and eager differ: ")
    assert unreached == ("may be compiled", "no program of the recipes reached it")
    text = (out / "train.py").read_text(encoding="utf-8")
    assert text.count("compiled=True") == 1
    assert "    loss_and_backward = backward_of(compute_loss, model, compiled=True)\n" in text.split("def fit_with")[0]
    notes = (out / "MIGRATION.md").read_text(encoding="utf-8")
    assert f"* `train.py:{min(steps)}` compiled: {dropout}\n" in notes.split("## Execution")[1]
    assert not (out / "net.pt").exists()  # the run had a copy
    lines = {step["function_line"] for step in report.facts["execution"] if step["mode"] == "compiled"}
    assert switched_on(text, lines) == text


def test_without_a_run_everything_stays_eager(repository: Path, tmp_path: Path) -> None:
    report = convert(repository, tmp_path / "out")
    steps = report.facts["execution"]
    assert [step["mode"] for step in steps] == ["may be compiled", "eager", "may be compiled", "may be compiled"]
    assert steps[1]["reason"] == "model.py:21: x.abs().max().item() reads a value back to Python"
    assert "compiled=True" not in (tmp_path / "out" / "train.py").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("project", "line", "reason"),
    [
        ("moe", "moe.py:49", "torch.where gives a shape"),
        ("custom_function", "model.py:39", "RoundSTE has a backward of its own"),
        ("gan", "", "share the computation"),
    ],
)
def test_the_line_that_prevents_a_graph(project: str, line: str, reason: str, tmp_path: Path) -> None:
    steps = convert(PROJECTS / project, tmp_path / "out").facts["execution"]
    assert {step["mode"] for step in steps} == {"eager"}
    assert all(step["reason"].startswith(line) and reason in step["reason"] for step in steps)


def test_no_grad_and_figures_for_a_log_prevent_no_graph(tmp_path: Path) -> None:
    (step,) = convert(PROJECTS / "dpo", tmp_path / "out").facts["execution"]
    assert step["mode"] == "may be compiled"


def test_the_switch_goes_where_it_is_asked() -> None:
    text = (
        "def f(m):\n"
        "    def compute_loss(x):\n        return m(x)\n\n"
        "    step = backward_of(\n        compute_loss, m  # ü\n    )\n"
        "def g(m):\n"
        "    def compute_loss(x):\n        return m(x)\n\n"
        "    step = ms_compat.backward_of(compute_loss, m)\n"
    )
    assert switched_on(text, []) == text
    both = switched_on(text, [2, 9])
    assert both.count("compiled=True") == 2
    compile(both, "case", "exec")
    assert switched_on(both, [2, 9]) == both
    assert switched_on(text, [9]).splitlines()[-1].endswith("backward_of(compute_loss, m, compiled=True)")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("programs: train.py", "a list under `programs`"),
        ("programs: [{arguments: [1]}]", "`run`"),
        ("programs: [{run: train.py, args: []}]", "unknown field 'args'"),
        ("programs: [{run: train.py, arguments: x}]", "must be a list"),
        (": :", "cannot be read"),
    ],
)
def test_bad_programs(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "recipes.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=message):
        read_programs(path)


def test_a_program_that_is_not_there(repository: Path, tmp_path: Path) -> None:
    recipes = tmp_path / "recipes.yaml"
    recipes.write_text("programs: [{run: fit.py}]", encoding="utf-8")
    with pytest.raises(UserError, match=r"fit\.py"):
        convert(repository, tmp_path / "out", modules=recipes)


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("from ms_compat import autograd, decode_step as ms_decode_step", "ms_decode_step.decode_step"),
        ("from package.ms_compat.decode_step import decode_step as step_of", "step_of"),
        ("import ms_compat.decode_step", "ms_compat.decode_step.decode_step"),
    ],
)
def test_a_function_of_the_program_that_is_called_as_the_helper_gets_no_switch(line: str, name: str) -> None:
    text = f"""{line}


def decode_step(model, x):
    return {name}(model)(x)


def generate(model, x):
    return decode_step(model, x) + {name}(model)(x)
"""
    found = [replace(finding("M404", "model"), file="a.py", line=n) for n in (4, 8)]
    assert [step.function_line for step in find_steps([("a.py", text)], found)] == [5, 9]
    assert switched_on(text, [5, 9]).count("compiled=True") == 2
    assert f"decode_step(model, x) + {name}(model, compiled=True)(x)" in switched_on(text, [9])
