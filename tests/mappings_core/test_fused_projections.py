"""The parts of fused tensors are what the models compute with: queries, keys, values, gate and up."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from family_configs import model_config

from mappings.arrangement import Arrangement
from mappings.families import load_family


def parts_of(config: dict[str, Any], family: str, name: str, stored: Any) -> dict[str, Any]:
    """The atoms in a tensor, by part."""
    kind = load_family(family)
    atoms = kind.atoms(config)
    spelled = next(tensor for tensor in kind.spelling(config) if tensor.name == name)
    whole = spelled.arrangement(lambda atom: Arrangement.of(atom, atoms[atom].shape), kind.dims(config))
    assert whole is not None and whole.shape == stored.shape
    flat = np.ascontiguousarray(stored).ravel()
    found = {atom: np.full(atoms[atom].shape, np.nan, stored.dtype) for atom in spelled.atoms}
    for place in whole.placements():
        strides = tuple(step * flat.itemsize for step in place.strides)
        box = tuple(slice(start, start + count) for start, count in zip(place.start, place.extent, strict=True))
        found[place.atom][box] = np.lib.stride_tricks.as_strided(flat[place.offset :], place.extent, strides)
    assert not any(np.isnan(values).any() for values in found.values())
    return {atom.partition("#")[2]: values for atom, values in found.items()}


def built(family: str, **changes: Any) -> tuple[dict[str, Any], Any]:
    """config.json and a model of random weights, biases included, whose attention records what it is given."""
    import torch
    import transformers

    config = model_config(family, **changes)
    fields = {key: value for key, value in config.items() if key not in ("model_type", "architectures")}
    torch.manual_seed(0)
    settings = transformers.AutoConfig.for_model(config["model_type"], **fields)
    model = getattr(transformers, config["architectures"][0])._from_config(settings, attn_implementation="eager")
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    return config, model.eval()


def projections(config: dict[str, Any], family: str, model: Any, name: str, given: Any) -> dict[str, Any]:
    """The projections of a hidden state by each part of a fused tensor, its bias added."""
    weights = {key: value.numpy() for key, value in model.state_dict().items()}
    parts = parts_of(config, family, f"{name}.weight", weights[f"{name}.weight"])
    if family == "gpt2":  # Conv1D stores the transpose
        parts = {part: values.T for part, values in parts.items()}
    result = {part: values @ given for part, values in parts.items()}
    if f"{name}.bias" in weights:
        for part, values in parts_of(config, family, f"{name}.bias", weights[f"{name}.bias"]).items():
            result[part] = result[part] + values
    return result


@pytest.mark.parametrize(
    ("family", "name"),
    [
        ("phi3", "model.layers.1.self_attn.qkv_proj"),
        ("gpt2", "transformer.h.1.attn.c_attn"),
        ("gpt_neox", "gpt_neox.layers.1.attention.query_key_value"),
    ],
)
def test_attention_is_given_the_parts(family: str, name: str) -> None:
    import torch
    import transformers

    config, model = built(family)
    seen: list[Any] = []
    inputs: list[Any] = []

    def attention(module: Any, query: Any, key: Any, value: Any, *_: Any, **__: Any) -> Any:
        seen.append([tensor[0, :, 0].flatten().numpy() for tensor in (query, key, value)])
        return query.transpose(1, 2).contiguous(), None

    transformers.AttentionInterface.register("recorded", attention)
    model.set_attn_implementation("recorded")
    model.get_submodule(name).register_forward_hook(lambda _, args, __: inputs.append(args[0][0, 0].numpy()))
    with torch.no_grad():
        model(torch.tensor([[3]]))  # a single token: rotary embeddings do not turn position 0
    ours = projections(config, family, model, name, inputs[0])
    for part, theirs in zip("qkv", seen[1], strict=True):
        np.testing.assert_allclose(ours[part], theirs, rtol=1e-5, atol=1e-5)  # sums of 12 products in float32


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("bloom", {}),
        ("falcon", {"bias": True}),
        ("falcon", {"multi_query": True}),
        ("falcon", {"new_decoder_architecture": True, "num_kv_heads": 2, "bias": True}),
    ],
)
def test_heads_are_split_as_the_model_splits_them(family: str, changes: dict[str, Any]) -> None:
    import torch

    config, model = built(family, **changes)
    name = "transformer.h.1.self_attention.query_key_value"
    given = torch.randn(config["hidden_size"])
    attention = model.transformer.h[1].self_attention
    split = attention._reshape if family == "bloom" else attention._split_heads
    with torch.no_grad():
        heads = [
            tensor.squeeze().reshape(-1, attention.head_dim)
            for tensor in split(attention.query_key_value(given[None, None]))
        ]
    ours = projections(config, family, model, name, given.numpy())
    copies = 2 if changes.get("new_decoder_architecture") else 1  # keys and values are repeated for their queries
    for part, theirs, step in zip("qkv", heads, (1, copies, copies), strict=True):
        np.testing.assert_allclose(ours[part], theirs[::step].flatten().numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("family", ["phi3", "glm4"])
def test_gate_and_up(family: str) -> None:
    import torch

    config, model = built(family)
    mlp, given = model.model.layers[1].mlp, torch.randn(config["hidden_size"])
    both = projections(config, family, model, "model.layers.1.mlp.gate_up_proj", given.numpy())
    gate, up = torch.from_numpy(both["gate"]), torch.from_numpy(both["up"])
    with torch.no_grad():
        theirs = mlp(given[None, None])[0, 0]
        ours = mlp.down_proj(torch.nn.functional.silu(gate) * up)
        swapped = mlp.down_proj(torch.nn.functional.silu(up) * gate)
    torch.testing.assert_close(ours, theirs)
    assert not torch.allclose(swapped, theirs, rtol=1e-2)


def test_published_layouts() -> None:
    """What the code that came with these checkpoints does with its fused tensors."""
    rng = np.random.default_rng(0)

    config = model_config("baichuan2")
    stored = rng.normal(size=(36, 12))
    parts = parts_of(config, "baichuan2", "model.layers.0.self_attn.W_pack.weight", stored)
    for part, theirs in zip("qkv", stored.reshape(3, 12, 12), strict=True):
        assert np.array_equal(parts[part], theirs)

    config = model_config("internlm2")  # 2 heads of keys, 2 heads of queries for each, of width 6
    stored = rng.normal(size=(48, 24))
    groups = stored.reshape(2, 4, 6, 24)
    parts = parts_of(config, "internlm2", "model.layers.0.attention.wqkv.weight", stored)
    assert np.array_equal(parts["q"], groups[:, :2].reshape(24, 24))
    assert np.array_equal(parts["k"], groups[:, 2].reshape(12, 24))
    assert np.array_equal(parts["v"], groups[:, 3].reshape(12, 24))

    config = model_config("chatglm3")
    for name, stored in (("weight", rng.normal(size=(48, 24))), ("bias", rng.normal(size=48))):
        parts = parts_of(
            config, "chatglm3", f"transformer.encoder.layers.0.self_attention.query_key_value.{name}", stored
        )
        for part, theirs in zip("qkv", np.split(stored, [24, 36]), strict=True):
            assert np.array_equal(parts[part], theirs)
    config["multi_query_attention"] = False
    stored = rng.normal(size=(72, 24))
    parts = parts_of(config, "chatglm3", "transformer.encoder.layers.0.self_attention.query_key_value.weight", stored)
    for number, part in enumerate("qkv"):
        assert np.array_equal(parts[part], stored.reshape(4, 3, 6, 24)[:, number].reshape(24, 24))
    stored = rng.normal(size=(40, 24))
    parts = parts_of(config, "chatglm3", "transformer.encoder.layers.0.mlp.dense_h_to_4h.weight", stored)
    assert np.array_equal(parts["gate"], stored[:20]) and np.array_equal(parts["up"], stored[20:])
