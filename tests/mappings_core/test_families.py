"""The schema of family files, and what a `config.json` may say."""

from __future__ import annotations

import pytest
import yaml
from family_configs import model_config

from mappings.errors import UserError
from mappings.expressions import evaluate
from mappings.families import families, family_for_config, load_family
from mappings.families.patterns import pattern_matches
from mappings.families.schema import parse

BASE = {
    "vocab_size": 31, "hidden_size": 12, "intermediate_size": 20, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2,
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(families()))
def test_parameters_are_unique_and_layers_ascend(name):
    family, config = load_family(name), model_config(name)
    parameters = family.parameters(config)
    assert len({p.name for p in parameters}) == len(parameters)
    layers = [p.layer for p in parameters if p.layer is not None]
    assert layers == sorted(layers)
    assert set(layers) == set(range(evaluate(family.layer_count, family.symbols(config))))
    for parameter in parameters:
        if parameter.layer is not None:
            assert f".{parameter.layer}." in parameter.name
        if parameter.cut is not None:
            assert parameter.shape[parameter.cut] % parameter.unit == 0


def test_tied_and_ignored_names():
    family = load_family("llama")
    tied = {**BASE, "tie_word_embeddings": True}
    assert family.tied_to("lm_head.weight", tied) == "model.embed_tokens.weight"
    assert family.tied_to("lm_head.weight", BASE) is None
    assert not family.is_ignored("lm_head.weight", BASE)
    assert family.is_ignored("lm_head.weight", tied)
    assert family.is_ignored("model.layers.10.self_attn.rotary_emb.inv_freq", BASE)
    assert not family.is_ignored("model.layers.10.self_attn.rotary_emb.inv_freq.x", BASE)


def test_pattern_is_anchored_and_takes_plain_indices_only():
    pattern = "a.{layer}.b"
    assert pattern_matches(pattern, "a.0.b") and pattern_matches(pattern, "a.12.b")
    for name in ("a.01.b", "a.-1.b", "a..b", "xa.1.b", "a.1.bx", "aX1.b", "a.1.b\n", "a.\u0661.b"):
        assert not pattern_matches(pattern, name), name


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"vocab_size": None}, "'vocab_size' is missing"),
        ({"hidden_size": "12"}, "hidden_size must be a positive whole number"),
        ({"hidden_size": True}, "hidden_size"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"head_dim": -1}, "head_dim"),
        ({"hidden_size": 2}, "head_dim"),  # 2 // 4 heads
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings must be true or false"),
    ],
)
def test_bad_config_is_refused_with_the_field(changes, words):
    with pytest.raises(UserError, match=words):
        load_family("qwen2").parameters({**BASE, **changes})


def test_unknown_family_and_model_type_suggest_the_nearest():
    with pytest.raises(UserError, match="did you mean 'llama'"):
        load_family("lama")
    with pytest.raises(UserError, match=r"'qwen4' is not supported; the nearest known is 'qwen3'"):
        family_for_config({"model_type": "qwen4"})
    with pytest.raises(UserError, match="'model_type' is missing"):
        family_for_config({})


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda d: d.update(extra=1), "unknown"),
        (lambda d: d.pop("flags"), "missing"),
        (lambda d: d["parameters"][0].update({"class": "head"}), "class"),
        (lambda d: d["parameters"][0].update(cut=2), "cut"),
        (lambda d: d["parameters"][0].update(when="never"), "never"),
        (lambda d: d["parameters"][0].update(shape=["vocabulary"]), "vocabulary"),
        (lambda d: d["parameters"][0].update(shape=["vocab / 2"]), "allowed"),
        (lambda d: d["parameters"][0].update(padded=True, cut=None), "padded"),
        (lambda d: d["parameters"].append(d["parameters"][0]), "twice"),
        (lambda d: d["tied"].update(x={"same_as": "y", "when": "tied"}), "same_as"),
        (lambda d: d.update(family="other"), "family"),
    ],
)
def test_file_that_breaks_the_schema_is_refused(edit, words, tmp_path):
    from mappings.families import registry

    path = registry.FOLDER / "llama.yaml"
    data = yaml.safe_load(path.read_text())
    edit(data)
    with pytest.raises(ValueError, match=words):
        parse(path, data)


@pytest.mark.parametrize(("text", "value"), [("a", 7), (3, 3), ("a * 2 + b", 17), ("a // b - 1", 1), ("a*(b+1)", 28)])
def test_expressions(text, value):
    assert evaluate(text, {"a": 7, "b": 3}) == value


@pytest.mark.parametrize(
    "text", ["a / 2", "f(a)", "a.b", "'x'", "True", "1.5", "-a", "c", "a[0]", "a in b", "a(b)", "a +", ""]
)
def test_anything_else_in_an_expression_is_refused(text):
    with pytest.raises(ValueError):
        evaluate(text, {"a": 7, "b": 3})


@pytest.mark.parametrize("name", ["nothing", "x" * 5000, "../families/llama", "", "llama.yaml", "a\0b"])
def test_a_name_from_a_file_is_no_path(name: str) -> None:
    with pytest.raises(UserError, match="unknown family"):
        load_family(name)
