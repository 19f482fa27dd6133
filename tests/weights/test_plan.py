"""`prove` accepts what the planners make and refuses every plan that was spoilt."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hf_checkpoints import config, write_model

from mappings.layout import ParallelLayout
from migrate.weights.command import convert
from migrate.weights.convert_plan import HfModel, plan_convert
from migrate.weights.export_plan import ShardedModel, plan_export
from migrate.weights.plan import PlanError, prove

EMBED, NORM, DOWN = "model.embed_tokens.weight", "model.norm.weight", "model.layers.1.mlp.down_proj.weight"


@pytest.fixture(params=["convert", "export"])
def proved(request, tmp_path):
    """A sound plan and the tensors it must account for."""
    write_model(tmp_path / "hf", config("llama", tie_word_embeddings=True), shards=2, tied_copy=True)
    model = HfModel.read(tmp_path / "hf")
    layout = ParallelLayout(tp=2, dp=2)
    if request.param == "convert":
        return plan_convert(model, layout), list(model.tensors.values())
    convert(tmp_path / "hf", tmp_path / "out", layout=layout)
    sharded = ShardedModel.read(tmp_path / "out")
    return plan_export(sharded, None)[0], sharded.entries


def spoil(plan, name, edit):
    """The plan with one assignment changed."""
    assert any(assignment.name == name for assignment in plan.assignments)
    return replace(plan, assignments=tuple(edit(a) if a.name == name else a for a in plan.assignments))


def pieces(assignment, edit):
    return replace(assignment, pieces=(edit(assignment.pieces[0]), *assignment.pieces[1:]))


SPOILT = {
    "piece lost": lambda plan: spoil(plan, DOWN, lambda a: replace(a, pieces=a.pieces[1:])),
    "piece twice": lambda plan: spoil(plan, DOWN, lambda a: replace(a, pieces=a.pieces + a.pieces[:1])),
    "source shifted": lambda plan: spoil(
        plan, DOWN, lambda a: pieces(a, lambda p: replace(p, source_start=p.source_start + 1))
    ),
    "target shifted": lambda plan: spoil(
        plan, EMBED, lambda a: pieces(a, lambda p: replace(p, target_start=p.target_start + 1))
    ),
    "too short": lambda plan: spoil(plan, EMBED, lambda a: pieces(a, lambda p: replace(p, count=p.count - 1))),
    "too long": lambda plan: spoil(plan, EMBED, lambda a: pieces(a, lambda p: replace(p, count=p.count + 1))),
    "norm not whole": lambda plan: spoil(plan, NORM, lambda a: pieces(a, lambda p: replace(p, count=1))),
    "wrong axis": lambda plan: spoil(plan, DOWN, lambda a: replace(a, axis=0)),
    "other dtype": lambda plan: spoil(
        plan, NORM, lambda a: pieces(a, lambda p: replace(p, target=replace(p.target, dtype="BF16")))
    ),
    "foreign target": lambda plan: spoil(
        plan, NORM, lambda a: pieces(a, lambda p: replace(p, target=replace(p.target, file="x")))
    ),
    "foreign source": lambda plan: spoil(
        plan, NORM, lambda a: pieces(a, lambda p: replace(p, source=replace(p.source, padding=1)))
    ),
    "assignment lost": lambda plan: replace(plan, assignments=plan.assignments[1:]),
    "assignment twice": lambda plan: replace(plan, assignments=plan.assignments + plan.assignments[:1]),
    "file lost": lambda plan: replace(plan, files=plan.files[1:]),
    "tensor lost from a file": lambda plan: replace(
        plan, files=(replace(plan.files[0], targets=plan.files[0].targets[1:]), *plan.files[1:])
    ),
    "left out without a word": lambda plan: replace(plan, unused=()),
    "left out although used": lambda plan: replace(
        plan, unused=(*plan.unused, plan.assignments[0].sources[0].entry)
    ),
}  # fmt: skip


def test_sound_plan_is_proved(proved):
    prove(*proved)


@pytest.mark.parametrize("case", SPOILT)
def test_spoilt_plan_is_refused(proved, case):
    plan, available = proved
    with pytest.raises(PlanError):
        prove(SPOILT[case](plan), available)


def test_source_tensor_that_nobody_mentions_is_refused(proved):
    plan, available = proved
    with pytest.raises(PlanError, match="from nowhere"):
        prove(plan, available[1:])
    with pytest.raises(PlanError, match="unaccounted"):
        prove(plan, [*available, replace(available[0], name="stranger")])
