"""What may be the matter: read from the source of transformers, which is not imported for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mappings.families import load_family
from migrate.parity.explain.descent import Place
from migrate.parity.explain.running import suspects_of
from migrate.parity.explain.sources import Source, find_source
from migrate.parity.explain.suspects import MOST, suspects

CASES = {
    "an epsilon": ("qwen2", "model.layers.0.input_layernorm", {"rms_norm_eps": 1e-6}, "config.rms_norm_eps = 1e-06"),
    "rope": ("llama", "model.layers.1.self_attn", {"rope_parameters": {"rope_theta": 5e5}}, "config.rope_parameters ="),
    "an activation": ("gpt2", "transformer.h.0.mlp", {"activation_function": "gelu_new"}, "chooses the activation"),
    "its kernel": ("gpt2", "transformer.h.0.mlp", {"activation_function": "gelu_new"}, "torch.tanh: "),
    "a default": ("gpt2", "transformer.h.0.ln_1", {}, "mindspore.nn.LayerNorm has an epsilon of 1e-7 by default"),
    "a scale": (
        "deepseek_v3",
        "model.layers.1.mlp.gate",
        {"routed_scaling_factor": 1.7},
        "routed_scaling_factor = 1.7",
    ),
    "a window": ("gemma2", "model.layers.0.self_attn", {"sliding_window": 7}, "config.sliding_window = 7"),
    "a cap": ("gemma2", "logits", {"final_logit_softcapping": 3.0}, "config.final_logit_softcapping = 3.0"),
    "a bias": ("qwen2", "model.layers.0.self_attn.q_proj", {}, "nn.Linear is made with bias=True"),
}


@pytest.mark.parametrize("name", CASES)
def test_the_usual_suspect_is_listed(name: str) -> None:
    family, module, config, text = CASES[name]
    found = suspects_of(load_family(family), {"model_type": family, **config})(Place(module))
    assert any(text in one for one in found), found
    assert len(found) <= MOST


def test_settings_that_differ_between_the_sides_come_first() -> None:
    config = {"model_type": "qwen2", "rms_norm_eps": 1e-6, "hidden_act": "silu"}
    listed = suspects_of(load_family("qwen2"), config, {**config, "hidden_act": "gelu"})
    assert listed(Place("model.norm"))[0] == "config.hidden_act = 'silu' of the reference, 'gelu' of the candidate"


def test_the_code_between_embedding_and_layers_is_that_of_the_body() -> None:
    listed = suspects_of(load_family("granite"), {"model_type": "granite", "embedding_multiplier": 12.0})
    place = Place("", "model.layers.0", "model.embed_tokens")
    assert any("config.embedding_multiplier = 12.0" in one for one in listed(place))


def test_classes_are_found_through_lists_conditions_and_base_classes(tmp_path: Path) -> None:
    path = tmp_path / "modeling_x.py"
    path.write_text(
        "import torch\nfrom torch import nn\nimport torch.nn.functional as F\n"
        "class A(nn.Module):\n"
        "    def __init__(self, config, eps=1e-3):\n        self.act = nn.GELU()\n"
        "    def forward(self, x):\n        return F.leaky_relu(x)\n"
        "class B(A):\n    def forward(self, x):\n        return torch.var(x)\n"
        "class M(nn.Module):\n"
        "    def __init__(self, config):\n"
        "        kind = B if config.b else A\n"
        "        self.layers = nn.ModuleList([kind(config) for _ in range(2)])\n"
    )
    source = Source.read(path)
    assert {one.made for one in source.resolve("M", "layers.0")} == {"A", "B"}
    assert {one.made for one in source.resolve("M", "layers.1.act")} == {"torch.nn.GELU"}
    assert source.resolve("M", "nothing") == []
    texts = [one.text for one in suspects(source, "M", "layers.0", {})]
    assert any(text.startswith("torch.var: ") for text in texts)
    assert any(text.startswith("torch.nn.functional.leaky_relu: ") for text in texts)
    assert any("(eps=0.001) is its default" in text for text in texts)


def test_every_family_has_its_source() -> None:
    for name in ("llama", "mistral", "qwen3_moe", "mixtral", "phi3", "gemma3_text", "glm4", "gpt_neox", "xlm_roberta"):
        found = find_source(load_family(name).architectures, name)
        assert found is not None and found[1] in found[0].classes, name


def test_neither_torch_nor_transformers_is_imported() -> None:
    code = (
        "import sys\nfrom mappings.families import load_family\nfrom migrate.parity.explain.descent import Place\n"
        "from migrate.parity.explain.running import suspects_of\n"
        "assert suspects_of(load_family('llama'), {'model_type': 'llama'})(Place('model.layers.0.self_attn'))\n"
        "assert not {'torch', 'transformers', 'mindspore'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
