"""Plan files and declared plans: what they cut, and how a bad one is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mappings.errors import UserError
from migrate.cli import main
from migrate.code.command import convert
from migrate.report import Report

MODEL = """\
import torch
import torch.nn.functional as F
from torch import nn


class Config:
    model_type = "mine"
    {declared}


class Mlp(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.up = nn.Linear(dim, 4 * dim)
        self.gate = nn.Linear(dim, 4 * dim)
        self.down = nn.Linear(4 * dim, dim)

    def forward(self, x):
        x = self.norm(x)
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Model(nn.Module):
    def __init__(self, vocab, dim):
        super().__init__()
        self.table = nn.Embedding(vocab, dim)
        self.layers = nn.ModuleList([Mlp(dim) for _ in range(2)])
        self.head = nn.Linear(dim, vocab)

    def forward(self, ids):
        x = self.table(ids)
        for layer in self.layers:
            x = x + layer(x)
        return self.head(x)
"""
MLP = """\
  - {path: layers.*.up, class: ffn, cut: column}
  - {path: layers.*.gate, class: ffn, cut: column}
  - {path: layers.*.down.weight, class: ffn, cut: row}
"""


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    return written(tmp_path, "pass")


def written(tmp_path: Path, declared: str) -> Path:
    folder = tmp_path / "repo"
    folder.mkdir()
    (folder / "model.py").write_text(MODEL.format(declared=declared), encoding="utf-8")
    return folder


def sharded(repo: Path, plan: str) -> Report:
    path = repo.parent / "plan.yaml"
    path.write_text(plan, encoding="utf-8")
    return convert(repo, repo.parent / "out", shard=str(path))


def cuts(report: Report) -> dict[str, tuple[str, str]]:
    rows = report.facts["sharding"]["cut"]
    return {row["parameter"].split(".")[1]: (row["class"], row["cut"]) for row in rows}


def test_a_plan_cuts_what_it_names_and_nothing_else(repo: Path) -> None:
    report = sharded(repo, f"layers:\n{MLP}  - {{path: head, class: lm_head, cut: vocabulary}}\n")
    ffn = {"up": ("ffn", "column"), "gate": ("ffn", "column"), "down": ("ffn", "row")}
    assert cuts(report) == {**ffn, "head": ("lm_head", "vocabulary")}
    whole = {row["parameter"]: row["why"] for row in report.facts["sharding"]["whole"]}
    assert whole == {"Model.table.weight": "the plan does not name it"}
    text = (repo.parent / "out" / "model.py").read_text(encoding="utf-8")
    assert "self.down = RowParallelLinear(4 * dim, dim)" in text and "self.table = Embedding(vocab, dim)" in text


def test_a_layer_can_be_kept_whole(repo: Path) -> None:
    report = sharded(repo, f"layers:\n{MLP}  - {{path: table, class: embedding, cut: replicated}}\n")
    why = {row["parameter"]: row["why"] for row in report.facts["sharding"]["whole"]}
    assert why["Model.table.weight"] == f"{repo.parent / 'plan.yaml'}:5 says so"


def test_a_plan_that_cannot_be_proved_is_reported_at_its_layers(repo: Path) -> None:
    report = sharded(repo, "layers:\n  - {path: layers.*.up, class: ffn, cut: column}\n")
    assert cuts(report) == {}
    (found,) = (f for f in report.findings if f.code == "M701")
    assert found.file == "model.py" and "up stays whole: " in found.message
    assert report.exit_code == 1


def test_the_table_is_in_the_report_and_in_the_notes(repo: Path) -> None:
    sharded(repo, f"layers:\n{MLP}")
    out = repo.parent / "out"
    rows = json.loads((out / "report.json").read_text(encoding="utf-8"))["facts"]["sharding"]["cut"]
    down = next(row for row in rows if row["parameter"] == "Mlp.down.weight")
    assert (down["shape"], down["rank_shape"]) == (["dim", "(4 * dim)"], ["dim", "(4 * dim) / tp"])
    assert (down["file"], down["line"]) == ("model.py", 17) and "sum of outputs" in down["collective"]
    notes = (out / "MIGRATION.md").read_text(encoding="utf-8")
    assert "| ffn | `Mlp.down.weight` | row | `[dim, (4 * dim)]` | `[dim, (4 * dim) / tp]` |" in notes
    assert "* `Model.head.weight` (`model.py:29`): the plan does not name it" in notes


BAD = {
    "no list": ("layers: all", "plan.yaml:1: `layers` must be a list"),
    "other keys": ("layer: []", "a plan is a mapping with the one key `layers`"),
    "no YAML": ("layers: [", "no YAML"),
    "unknown key": ("layers:\n  - {path: head, klass: ffn}", "plan.yaml:2: unknown key 'klass'; did you mean 'class'?"),
    "unknown class": (f"layers:\n{MLP}  - {{path: head, class: lmhead, cut: row}}", "plan.yaml:5: class 'lmhead' is"),
    "unknown cut": ("layers:\n  - {path: head, class: ffn, cut: rows}", "cut 'rows' is unknown; did you mean 'row'?"),
    "class against cut": ("layers:\n  - {path: head, class: lm_head, cut: row}", "are cut by vocabulary"),
    "missing": ("layers:\n  - {path: head, class: ffn}", "plan.yaml:2: cut is missing"),
    "no mapping": ("layers:\n  - head", "plan.yaml:2: an entry is a mapping"),
    "no text": ("layers:\n  - {path: [head], class: ffn, cut: row}", "plan.yaml:2: path must be a text"),
    "twice": (f"layers:\n{MLP}{MLP}", "plan.yaml:5: path 'layers.*.up' stands already at"),
    "nothing matches": ("layers:\n  - {path: layers.*.uo, class: ffn, cut: row}", "'layers.*.uo' matches no Linear"),
    "no layer": ("layers:\n  - {path: layers.*.norm, class: ffn, cut: row}", "'layers.*.norm' is no Linear and no Emb"),
    "a table by rows": ("layers:\n  - {path: table, class: ffn, cut: row}", "'table' is an Embedding"),
    "one of several": ("layers:\n  - {path: layers.0.up, class: ffn, cut: row}", "write 'layers.*.up'"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_plans_are_refused_in_one_line(repo: Path, name: str) -> None:
    plan, message = BAD[name]
    with pytest.raises(UserError) as caught:
        sharded(repo, plan)
    assert message in str(caught.value) and "plan.yaml" in str(caught.value) and "\n" not in str(caught.value)
    assert not (repo.parent / "out").exists()


def test_a_missing_plan_on_the_command_line(repo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["code", str(repo), "-o", str(repo.parent / "out"), "--shard", "nowhere.yaml"]) == 2
    assert "nowhere.yaml: cannot be read" in capsys.readouterr().err


def test_a_declared_plan_is_taken(tmp_path: Path) -> None:
    declared = (
        'base_model_tp_plan = {"layers.*.up": "colwise", "layers.*.gate": "colwise", "layers.*.down": "rowwise", '
        '"layers.*.norm": "sequence_parallel", "layers.*.router": "rowwise", "head": "replicate"}'
    )
    report = convert(written(tmp_path, declared), tmp_path / "out", shard="auto")
    assert {name: cut for name, (_, cut) in cuts(report).items()} == {"up": "column", "gate": "column", "down": "row"}
    messages = [f.message for f in report.findings if f.code == "M701"]
    assert any("layers.*.norm: 'sequence_parallel' of the declared plan is not known" in m for m in messages)
    assert any("'layers.*.router' matches no Linear" in m for m in messages)
    why = {row["parameter"]: row["why"] for row in report.facts["sharding"]["whole"]}
    assert why["Model.head.weight"] == "model.py:8 says so"


def test_a_declared_plan_with_a_missing_sum_is_not_believed(tmp_path: Path) -> None:
    declared = 'base_model_tp_plan = {"layers.*.up": "colwise", "layers.*.down": "rowwise"}'
    report = convert(written(tmp_path, declared), tmp_path / "out", shard="auto")
    assert "down" not in cuts(report)
    assert any("down stays whole" in f.message or "up stays whole" in f.message for f in report.findings)
