"""`is` expressions of family files: what they mean, and what is refused when the file is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from mappings.arrangement import Arrangement, concat, stack
from mappings.families import registry
from mappings.families.packing import check_packing, packed
from mappings.families.schema import parse
from mappings.families.shared import shared_spellings

DIMS = {"heads": 2, "hidden": 3}
A, B = Arrangement.of("a", (4, 3)), Arrangement.of("b", (4, 3))
EXPERTS = [{"e": Arrangement.of(f"e{index}", (4, 3))} for index in range(3)]


@pytest.mark.parametrize(
    ("parts", "text", "tensor"),
    [
        ("a", "a", A),
        ("ab", "concat(0, a, b)", concat(0, [A, B])),
        ("ab", "stack(1, a, b)", stack(1, [A, B])),
        ("ab", "reshape(stack(1, a, b), -1, hidden)", stack(1, [A, B]).reshape(8, 3)),
        ("a", "reshape(a, heads, 4 // heads, hidden)", A.reshape(2, 2, 3)),
        ("a", "transpose(a)", A.transpose()),
        ("ab", "transpose(stack(0, a, b), 0, 2, 1)", stack(0, [A, B]).transpose(0, 2, 1)),
        ("e", "stack(0, each(e))", stack(0, [e["e"] for e in EXPERTS])),
        ("abe", "concat(0, a, each(transpose(transpose(e))), b)", concat(0, [A, *(e["e"] for e in EXPERTS), B])),
    ],
)
def test_expressions_mean_what_numpy_means(parts: str, text: str, tensor: Arrangement) -> None:
    check_packing(text, {part: part == "e" for part in parts}, frozenset(DIMS))
    assert packed(text, {"a": A, "b": B}, EXPERTS, DIMS) == tensor


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a", "does not use"),
        ("concat(0, a, c)", "'c' is none of"),
        ("concat(0, a, e)", "each"),
        ("concat(0, a, each(each(e)))", "wrong place"),
        ("each(a)", "wrong place"),
        ("reshape(a, width)", "unknown dimension 'width'"),
        ("reshape(a, -2)", "only"),
        ("reshape(a, 1.5)", "only"),
        ("transpose(a, axes=0)", "none of"),
        ("concat(0)", "none of"),
        ("a + e", "none of"),
        ("__import__('os')", "none of"),
        ("concat(0, a", "no expression"),
    ],
)
def test_other_expressions_are_refused(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        check_packing(text, {"a": False, "e": True}, frozenset(DIMS))


def edited(edit: Any) -> None:
    path = registry.FOLDER / "gpt_oss.yaml"
    data = yaml.safe_load(path.read_text(encoding="utf-8"))
    edit(data, next(row for row in data["parameters"] if "parts" in row))
    parse(path, data)


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda d, row: row.update(shape=["hidden"]) or row.pop("is"), "missing"),
        (lambda d, row: row.update({"is": "stack(0, each(gate))"}), "does not use"),
        (lambda d, row: row["parts"]["up"].update(per="layer"), "per 'layer'"),
        (lambda d, row: row["parts"]["up"].update(cut=2), "cut 2 is no axis"),
        (lambda d, row: row["parts"]["up"].update(dtype="F32"), "unknown"),
        (lambda d, row: row.update(stage="middle"), "stage"),
        (lambda d, row: row.update({"in": "moe"}), "no set of layers"),
        (lambda d, row: d["dimensions"].pop("experts"), "unknown dimension 'experts'"),
        (lambda d, row: d.update(encodings=["int4"]), "int4"),
        (lambda d, row: d.update(layers={"moe": "layer > first"}), "unknown dimension 'first'"),
        (lambda d, row: d.update(layer_count="layers + more"), "unknown dimension 'more'"),
        (lambda d, row: d.update(optional_layers={"more": "layer >= other"}), "unknown dimension 'other'"),
        (lambda d, row: d.update(shared_spellings=["megatron"]), "megatron"),
        (lambda d, row: d["spellings"].update(other={"from": "later", "rows": []}), "from 'later'"),
        (lambda d, row: d["spellings"]["mxfp4"][0].update(encoding="int4"), "int4"),
        (lambda d, row: d["spellings"]["mxfp4"][0]["of"].update(up="model.norm.bias"), "is no atom"),
        (lambda d, row: d["spellings"]["mxfp4"][0].update(name="fused"), "in both names or in none"),
        (lambda d, row: d["spellings"]["mxfp4"][0].update(of="model.norm.weight"), "in both names or in none"),
    ],
)
def test_files_that_break_the_schema_are_refused(edit: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        edited(edit)


def test_rows_of_a_shared_spelling_are_those_whose_atoms_are_there() -> None:
    atoms = {"model.norm.weight", "model.layers.{layer}.self_attn.o_proj.weight"}
    rows = shared_spellings("mindformers", atoms, "layers")["mindformers"]["rows"]
    names = ["decoder.final_layernorm.weight", "decoder.layers.{layer}.self_attention.linear_proj.weight"]
    assert [row["name"] for row in rows] == names
    rows = shared_spellings("mindformers", atoms, "layers + mtp")["mindformers"]["rows"]
    assert [row["name"] for row in rows] == [
        *names,
        "mtp.layers.{mtp}.transformer_layer.self_attention.linear_proj.weight",
    ]


def test_spellings_that_do_not_add_up_are_refused() -> None:
    path = Path("gpt_oss.yaml")
    data = yaml.safe_load((registry.FOLDER / path).read_text(encoding="utf-8"))
    config = {"vocab_size": 5, "hidden_size": 4, "intermediate_size": 6, "num_hidden_layers": 1,
              "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 2, "num_local_experts": 2}  # fmt: skip
    part = "model.layers.{layer}.mlp.experts.gate_up_proj#gate.{expert}"
    rows = [{"name": "model.layers.{layer}.gates", "of": {"x": part}, "is": "stack(0, each(x))"}]
    family = parse(path, {**data, "spellings": {"half": rows}})
    with pytest.raises(ValueError, match=r"gate_up_proj#up\.0 of .* is in no new tensor"):
        family.spelling(config, "half")
    twice = [
        {**row, "name": f"model.layers.{{layer}}.{name}"} for row in data["spellings"]["mxfp4"][1:] for name in "ab"
    ]
    family = parse(path, {**data, "spellings": {"twice": twice}})
    with pytest.raises(ValueError, match=r"is in model\.layers\.0\.a and in model\.layers\.0\.b"):
        family.spelling(config, "twice")
