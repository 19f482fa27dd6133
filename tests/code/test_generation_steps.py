"""Steps of generation: what the source says about each, and comparisons of runs that allow a graph."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.code.command import convert
from migrate.code.execution import switched_on
from migrate.report import Verdict

ROOT = Path(__file__).parents[2]
PROJECTS = ROOT / "tests" / "code" / "projects"

MODEL = """
import itertools

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, size=24):
        super().__init__()
        self.table, self.head = nn.Embedding(9, 8), nn.Linear(8, 9)
        self.register_buffer("keys", torch.zeros(1, size, 8))

    def forward(self, tokens, at):
        self.keys[:, at] = self.table(tokens)
        return self.head(self.keys.mean(1, keepdim=True))


class Drifting(Net):
    numbers = itertools.count(1)

    def forward(self, tokens, at):
        return super().forward(tokens, at) * next(self.numbers)  # which no look at the state can see


class Window(Net):
    def forward(self, tokens):
        if tokens.sum() < 0:
            return self.head(self.table(tokens))
        return self.head(self.table(tokens) * 2)
"""

GENERATE = """
import torch

from model import Drifting, Net, Window


@torch.no_grad()
def decode(model: Net, steps):
    token = torch.tensor([[1]])
    for step in range(steps):
        logits = model(token, torch.tensor([step]))
        token = logits[:, -1].argmax(-1, keepdim=True)
    return token


@torch.no_grad()
def drift(steps):
    model, token, at = Drifting(), torch.tensor([[1]]), torch.tensor([0])
    for step in range(steps):
        token = model(token, at)[:, -1].argmax(-1, keepdim=True)
    return token


@torch.no_grad()
def window(steps):
    model, tokens = Window(), torch.ones(1, 4, dtype=torch.long)
    for step in range(steps):
        token = model(tokens[:, -4:])[:, -1].argmax(-1, keepdim=True)
        tokens = torch.cat((tokens, token), dim=1)
    return tokens


@torch.no_grad()
def longer(model: Net, tokens):
    while tokens.shape[1] < 20:
        recent = tokens[:, -16:]
        token = model(recent, torch.arange(recent.shape[1])).argmax(-1)
        tokens = torch.cat((tokens, token), dim=1)
    return tokens


@torch.no_grad()
def sequence(model: Net, tokens):
    for _ in range(4):
        token = model(tokens, torch.arange(tokens.shape[1])).argmax(-1)
        tokens = torch.cat((tokens, token), dim=1)
    return tokens


if __name__ == "__main__":
    torch.manual_seed(0)
    decode(Net(), 8)
    drift(8)
    window(8)
    longer(Net(), torch.ones(1, 2, dtype=torch.long))
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "repository"
    root.mkdir()
    (root / "model.py").write_text(MODEL, encoding="utf-8")
    (root / "generate.py").write_text(GENERATE, encoding="utf-8")
    return root


def test_steps_are_compiled_where_every_step_of_a_run_gives_the_same(repository: Path, tmp_path: Path) -> None:
    recipes, out = tmp_path / "recipes.yaml", tmp_path / "out"
    recipes.write_text("programs:\n  - {run: generate.py}\n", encoding="utf-8")
    report = convert(repository, out, modules=recipes)
    steps = sorted(report.facts["execution"], key=lambda step: step["line"])
    assert {step["kind"] for step in steps} == {"generation step"}
    good, drift, window, longer, sequence = ((step["mode"], step["reason"]) for step in steps)
    assert good == ("compiled", "")
    # The planted fault: a constant that changes where nobody looks. Only the comparison sees it.
    assert drift[0] == "eager" and drift[1].startswith("compiled and eager differ: result 0 by ")
    assert window == ("eager", f"model.py:{_line(out / 'model.py', 'if tokens.sum')}: a value is read back to Python")
    assert longer[0] == "eager" and "every step has other shapes or settings: tokens was a tensor of" in longer[1]
    assert sequence[0] == "eager" and sequence[1].startswith("generate.py:46: tokens grows at every step: torch.cat")
    text = (out / "generate.py").read_text(encoding="utf-8")
    assert text.count("compiled=True") == 1
    assert "        logits = decode_step(model, compiled=True)(token, " in text
    notes = (out / "MIGRATION.md").read_text(encoding="utf-8").split("Generation steps, and whether")[1]
    assert f"* `generate.py:{steps[0]['line']}` compiled\n" in notes
    stages = {stage.name: stage for stage in report.stages}
    assert stages["generation steps as graphs"].verdict is Verdict.FAIL
    assert stages["generation steps as graphs"].message == "1 of 5 generation steps are compiled"
    lines = {step["function_line"] for step in steps if step["mode"] == "compiled"}
    assert switched_on(text, lines) == text


def _line(path: Path, text: str) -> int:
    lines = path.read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


@pytest.mark.parametrize(
    ("project", "place", "mode", "reason"),
    [
        (ROOT / "samples" / "torch_gpt", "generate.py:44", "eager", "model.py:86: torch.cat([self.keys[layer_idx], k]"),
        (PROJECTS / "complex_rope", "train.py:27", "eager", "train.py:27: prev_pos is a Python number that changes"),
        (PROJECTS / "seq2seq", "train.py:100", "eager", "train.py:105: ys grows at every step: torch.cat([ys, "),
        (PROJECTS / "kv_cache", "generate.py:33", "may be compiled", "compare a run of it"),
    ],
)
def test_projects(project: Path, place: str, mode: str, reason: str, tmp_path: Path) -> None:
    report = convert(project, tmp_path / "out")
    (step,) = [step for step in report.facts["execution"] if step["kind"] == "generation step"]
    assert (f"{step['file']}:{step['line']}", step["mode"]) == (place, mode)
    assert step["reason"].startswith(reason)
    switches = (tmp_path / "out" / step["file"]).read_text(encoding="utf-8").count("decode_step(model)(")
    assert switches == (mode != "eager")
    notes = (tmp_path / "out" / "MIGRATION.md").read_text(encoding="utf-8")
    assert f"* `{place}` {mode}: {reason}" in notes.split("Generation steps, and whether")[1]
