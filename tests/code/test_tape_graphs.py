"""Steps whose losses go back through a tape: each call of a model is compared as a graph, and becomes one."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.code.command import convert
from migrate.code.model_calls import model_calls, with_graphs

TRAIN = """
import itertools

import torch
from torch import nn

NUMBERS = itertools.count(1)


class Drifting(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 2)

    def forward(self, x):
        return self.linear(x) * next(NUMBERS)


class Pair:
    def __init__(self):
        self.make = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
        self.judge = nn.Linear(2, 1)

    def train(self, steps):
        optimizer = torch.optim.SGD([*self.make.parameters(), *self.judge.parameters()], lr=0.1)
        for _ in range(steps):
            optimizer.zero_grad()
            made = self.make(torch.randn(4, 3))
            first = torch.tanh(self.judge(made)).mean()
            second = made.square().mean()
            first.backward(retain_graph=True)
            second.backward()
            optimizer.step()

"""
DRIFTING = TRAIN.replace("self.judge = nn.Linear(2, 1)", "self.judge = Drifting()")


BOTH = "import drifting\nimport train\n\ntrain.Pair().train(4)\ndrifting.Pair().train(4)\n"


def test_calls_of_models_become_graphs_unless_they_differ(tmp_path: Path) -> None:
    repository, recipes, out = tmp_path / "repository", tmp_path / "recipes.yaml", tmp_path / "out"
    repository.mkdir()
    for name, source in (("train", TRAIN), ("drifting", DRIFTING), ("both", BOTH)):
        (repository / f"{name}.py").write_text(source, encoding="utf-8")
    recipes.write_text("programs:\n- {run: both.py}\n", encoding="utf-8")
    facts = convert(repository, out, modules=recipes).facts
    steps = facts["execution"]
    assert [step["mode"] for step in steps if step["file"] == "train.py"] == ["compiled", "compiled"]
    text = (out / "train.py").read_text(encoding="utf-8")
    assert "made = graph_call.as_graph(self.make)(random.randn" in text
    assert "graph_call.as_graph(self.judge)(made)" in text
    assert "graph_call" in facts["helpers"] and (out / "ms_compat" / "graph_call.py").is_file()
    # The planted fault, a number that changes where nobody looks, keeps the steps of its file as they are.
    faulty = [step for step in steps if step["file"] == "drifting.py"]
    assert [step["mode"] for step in faulty] == ["eager", "eager"]
    assert "self.judge: compiled and eager differ: result 0 by" in faulty[0]["reason"]
    assert "graph_call" not in (out / "drifting.py").read_text(encoding="utf-8")


@pytest.mark.parametrize("form", ["from ms_compat import autograd, tape\n", "from ms_compat import (\n    tape,\n)\n"])
def test_the_text_of_the_switch(form: str) -> None:
    text = f"{form}y = self.net(a.b(x), 'ü') + net(\n    x\n)\ntape.backward(y)\n"
    line = text[: text.index("y = ")].count("\n") + 1
    assert model_calls(text)[line] == ["self.net", "a.b", "net"]
    calls = [(line, "self.net"), (line, "net")]
    made = with_graphs(text, calls)
    assert "y = graph_call.as_graph(self.net)(a.b(x), 'ü') + graph_call.as_graph(net)(\n" in made
    assert "graph_call, tape" in made
    compile(made, "case", "exec")
    assert with_graphs(made, calls) == made
    assert with_graphs(text, []) == text
