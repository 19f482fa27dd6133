"""Other spellings of a checkpoint: fused experts as transformers has them, MindSpore Transformers, four-bit blocks."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from family_configs import cases, model_config

from mappings.arrangement import Arrangement
from mappings.errors import UserError
from mappings.families import Spelled, families, load_family
from mappings.families.encodings import stored_names
from mappings.layout import ParallelLayout
from mappings.rank_cuts import RankCuts
from mappings.tiling import overlap, uncovered

Tensors = dict[str, Any]


def filled(arrangement: Arrangement, atoms: Tensors) -> Any:
    """The tensor, from its placements; padding is zero."""
    dtype = next(iter(atoms.values())).dtype
    flat = np.zeros(arrangement.size, dtype)
    for place in arrangement.placements():
        box = tuple(slice(start, start + count) for start, count in zip(place.start, place.extent, strict=True))
        strides = tuple(step * flat.itemsize for step in place.strides)
        np.lib.stride_tricks.as_strided(flat[place.offset :], place.extent, strides)[...] = atoms[place.atom][box]
    return flat.reshape(arrangement.shape)


def emptied(spelled: Spelled, config: dict[str, Any], family: str, stored: Any) -> Tensors:
    """The atoms in a stored tensor."""
    kind = load_family(family)
    atoms = kind.atoms(config)
    whole = spelled.arrangement(lambda name: Arrangement.of(name, atoms[name].shape), kind.dims(config))
    assert whole is not None and whole.shape == stored.shape, spelled.name
    assert overlap(whole) is None and not whole.padding
    flat = np.ascontiguousarray(stored).ravel()
    found = {name: np.empty(atoms[name].shape, stored.dtype) for name in spelled.atoms}
    for place in whole.placements():
        box = tuple(slice(start, start + count) for start, count in zip(place.start, place.extent, strict=True))
        strides = tuple(step * flat.itemsize for step in place.strides)
        found[place.atom][box] = np.lib.stride_tricks.as_strided(flat[place.offset :], place.extent, strides)
    return found


def numbered(family: str, config: dict[str, Any]) -> Tensors:
    """Every atom of a model, each element with a number of its own."""
    result, start = {}, 1
    for name, atom in load_family(family).atoms(config).items():
        size = int(np.prod(atom.shape))
        result[name] = np.arange(start, start + size).reshape(atom.shape)
        start += size
    return result


def packed(family: str, config: dict[str, Any], spelling: str) -> tuple[Tensors, Tensors]:
    """Atoms of a model and the tensors of a spelling."""
    kind, atoms = load_family(family), numbered(family, config)
    dims = kind.dims(config)
    tensors = {}
    for spelled in kind.spelling(config, spelling):
        whole = spelled.arrangement(lambda name: Arrangement.of(name, atoms[name].shape), dims)
        assert whole is not None
        tensors[spelled.name] = filled(whole, atoms)
    return atoms, tensors


@pytest.mark.parametrize("name", [name for name, family in families().items() if "hf_fused" in family.spellings])
def test_fused_experts_are_those_in_the_memory_of_transformers(name: str, tmp_path: Any) -> None:
    import torch
    import transformers
    from safetensors.numpy import load_file

    config = model_config(name)
    fields = {key: value for key, value in config.items() if key not in ("model_type", "architectures")}
    torch.manual_seed(0)
    settings = transformers.AutoConfig.for_model(config["model_type"], **fields)
    model = getattr(transformers, config["architectures"][0])._from_config(settings)
    for tensor in (*model.parameters(), *model.buffers()):
        torch.nn.init.normal_(tensor)
    model.save_pretrained(tmp_path)
    saved = load_file(tmp_path / "model.safetensors")
    memory = {key: value.numpy() for key, value in model.state_dict().items()}
    family = load_family(name)
    atoms: Tensors = {}
    for spelled in family.spelling(config, "hf_fused"):
        if spelled.optional:
            continue
        atoms |= emptied(spelled, config, name, memory.pop(spelled.name))
    assert all(family.is_ignored(key, config) for key in memory)
    assert set(atoms) == set(saved)
    for key, values in saved.items():
        assert np.array_equal(values, atoms[key]), key


@pytest.mark.parametrize("name", [name for name, family in families().items() if "hf_fused" in family.spellings])
def test_older_fused_experts_are_transposed(name: str) -> None:
    config = model_config(name)
    _, new = packed(name, config, "hf_fused")
    _, old = packed(name, config, "hf_fused_transposed")
    assert set(new) == set(old)
    fused = [key for key in new if key.endswith((".experts.gate_up_proj", ".experts.down_proj"))]
    assert fused and all(np.array_equal(old[key], new[key].swapaxes(1, 2)) for key in fused)
    assert all(np.array_equal(old[key], new[key]) for key in set(new) - set(fused))


def test_experts_of_gpt_oss_are_what_it_computes_with() -> None:
    import torch
    from transformers import GptOssConfig
    from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts

    config = model_config("gpt_oss")
    fields = {key: value for key, value in config.items() if key not in ("model_type", "architectures")}
    torch.manual_seed(0)
    experts = GptOssExperts(GptOssConfig(**fields))
    for parameter in experts.parameters():
        torch.nn.init.normal_(parameter)
    prefix = "model.layers.0.mlp.experts."
    stored = {prefix + key: value.numpy() for key, value in experts.state_dict().items()}
    parts: Tensors = {}
    for spelled in load_family("gpt_oss").spelling(config):
        if spelled.name in stored:
            parts |= emptied(spelled, config, "gpt_oss", stored[spelled.name])
    token = np.random.default_rng(0).normal(size=config["hidden_size"]).astype(np.float32)
    for expert in range(3):
        gate, up = (
            token @ parts[f"{prefix}gate_up_proj#{part}.{expert}"] + parts[f"{prefix}gate_up_proj_bias#{part}.{expert}"]
            for part in ("gate", "up")
        )
        hidden = (np.clip(up, -7, 7) + 1) * np.minimum(gate, 7) / (1 + np.exp(-1.702 * np.minimum(gate, 7)))
        ours = hidden @ parts[f"{prefix}down_proj#down.{expert}"] + parts[f"{prefix}down_proj_bias#down.{expert}"]
        with torch.no_grad():
            index, weight = torch.tensor([[expert]]), torch.ones(1, 1)
            theirs = experts(torch.from_numpy(token)[None], index, weight)[0].numpy()
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)  # fp32 sums in another order


def test_four_bit_blocks_decode_to_the_transposed_experts() -> None:
    import torch
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    config = {**model_config("gpt_oss"), "hidden_size": 64, "intermediate_size": 32}
    spellings = {name: load_family("gpt_oss").spelling(config, name) for name in ("hf", "mxfp4")}
    encoded = [spelled for spelled in spellings["mxfp4"] if spelled.encoding]
    prefix = "model.layers.0.mlp.experts."
    assert [stored_names(s.encoding or "", s.name) for s in encoded[:2]] == [
        {"blocks": f"{prefix}gate_up_proj_blocks", "scales": f"{prefix}gate_up_proj_scales"},
        {"blocks": f"{prefix}down_proj_blocks", "scales": f"{prefix}down_proj_scales"},
    ]
    rng = np.random.default_rng(0)
    for spelled, shape in zip(encoded[:2], ((3, 64, 64), (3, 64, 32)), strict=True):
        blocks = torch.from_numpy(rng.integers(0, 256, (*shape[:2], shape[2] // 32, 16), np.uint8))
        scales = torch.from_numpy(rng.integers(120, 130, (*shape[:2], shape[2] // 32), np.uint8))
        theirs = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)  # as the model holds it
        plain = next(s for s in spellings["hf"] if s.name == spelled.name)
        # The decoded rows are those of the stored blocks: the same tensor with its last two axes swapped.
        decoded = theirs.transpose(1, 2).contiguous().numpy()
        assert decoded.shape == shape
        ours, expected = (
            emptied(one, config, "gpt_oss", values) for one, values in ((spelled, decoded), (plain, theirs.numpy()))
        )
        assert all(np.array_equal(ours[name], expected[name]) for name in expected)


MINDFORMERS = [name for name, family in families().items() if "mindformers" in family.spellings]


@pytest.mark.parametrize("name", MINDFORMERS)
def test_no_tensor_of_mindspore_transformers_keeps_its_name(name: str) -> None:
    family = load_family(name)
    for config in (model_config(name, **changes) for kind, changes in cases() if kind == name):
        if config["architectures"][0] in family.headless:
            continue
        for spelling in ("mindformers", "mindformers_contiguous"):
            tensors = family.spelling(config, spelling)
            starts = {spelled.name.split(".")[0] for spelled in tensors}
            assert starts <= {"embedding", "decoder", "output_layer", "mtp"}
            assert Counter(atom for spelled in tensors for atom in spelled.atoms) == Counter(list(family.atoms(config)))
            assert not [spelled.name for spelled in tensors if "-" in spelled.name]  # MindSpore splits names there


def test_dense_layers_of_mindspore_transformers() -> None:
    config = {**model_config("qwen2"), "num_attention_heads": 6, "num_key_value_heads": 2, "hidden_size": 18}
    atoms, tensors = packed("qwen2", config, "mindformers")
    layer = {key.removeprefix("model.layers.1."): value for key, value in atoms.items()}
    for kind in ("weight", "bias"):
        q, k, v = (layer[f"self_attn.{part}_proj.{kind}"] for part in "qkv")
        groups = [np.concatenate([q[g * 9 : g * 9 + 9], k[g * 3 : g * 3 + 3], v[g * 3 : g * 3 + 3]]) for g in range(2)]
        assert np.array_equal(tensors[f"decoder.layers.1.self_attention.linear_qkv.{kind}"], np.concatenate(groups))
    gate, up = layer["mlp.gate_proj.weight"], layer["mlp.up_proj.weight"]
    rows = np.empty((40, 18), int)
    rows[::2], rows[1::2] = gate, up
    assert np.array_equal(tensors["decoder.layers.1.mlp.linear_fc1.weight"], rows)
    _, contiguous = packed("qwen2", config, "mindformers_contiguous")
    assert np.array_equal(contiguous["decoder.layers.1.mlp.linear_fc1.weight"], np.concatenate([gate, up]))
    changed = {key for key in tensors if not np.array_equal(tensors[key], contiguous[key])}
    assert changed == {f"decoder.layers.{index}.mlp.linear_fc1.weight" for index in (0, 1)}


def test_experts_and_further_token_layers_of_mindspore_transformers() -> None:
    config = model_config("deepseek_v3")
    atoms, tensors = packed("deepseek_v3", config, "mindformers")
    for layer, block in ((1, "decoder.layers.1"), (3, "mtp.layers.0.transformer_layer")):
        experts = [
            {part: atoms[f"model.layers.{layer}.mlp.experts.{e}.{part}_proj.weight"] for part in ("gate", "up", "down")}
            for e in range(3)
        ]
        first = np.stack([np.concatenate([e["gate"].T, e["up"].T], 1) for e in experts]).reshape(3 * 12, 14)
        assert np.array_equal(tensors[f"{block}.mlp.experts.weight1"], first)
        assert np.array_equal(tensors[f"{block}.mlp.experts.weight2"], np.concatenate([e["down"].T for e in experts]))
        bias = atoms[f"model.layers.{layer}.mlp.gate.e_score_correction_bias"]
        assert np.array_equal(tensors[f"{block}.mlp.router.expert_bias"], bias)
    kinds = {spelled.name: spelled for spelled in load_family("deepseek_v3").spelling(config, "mindformers")}
    assert kinds["decoder.layers.1.mlp.router.expert_bias"].dtype == "F32"
    assert kinds["mtp.layers.0.eh_proj.weight"].optional == "mtp" and not kinds["output_layer.weight"].optional


def test_further_token_layers_share_embedding_and_head() -> None:
    family, config = load_family("deepseek_v3"), model_config("deepseek_v3")
    assert family.tied_to("model.layers.3.embed_tokens.weight", config) == "model.embed_tokens.weight"
    assert family.tied_to("model.layers.3.shared_head.head.weight", config) == "lm_head.weight"
    assert family.tied_to("model.layers.2.embed_tokens.weight", config) is None
    tied = {**config, "tie_word_embeddings": True}
    assert family.tied_to("model.layers.3.shared_head.head.weight", tied) == "model.embed_tokens.weight"


@pytest.mark.parametrize("spelling", ["hf", "hf_fused", "mindformers"])
@pytest.mark.parametrize(
    "values",
    [{"dp": 3, "ep": 3}, {"tp": 2, "dp": 3, "ep": 3, "pp": 2}, {"tp": 4, "pp": 3}, {"dp": 6, "ep": 3, "zero": 3}],
)
def test_ranks_cover_a_model_with_experts(spelling: str, values: dict[str, int]) -> None:
    layout = ParallelLayout(**values)
    config = {**model_config("qwen3_moe"), "moe_intermediate_size": 8}
    cuts = RankCuts(load_family("qwen3_moe"), config, layout, spelling)
    boxes: dict[str, list[Any]] = {name: [] for name in cuts.atoms}
    for rank in {layout.weight_owner(rank) for rank in range(layout.world_size)}:
        for spelled, piece in cuts.tensors(rank):
            assert overlap(piece) is None, spelled.name
            for box in piece.pieces:
                boxes[box.atom].append((box.start, box.extent))
                expert = cuts.atoms[box.atom].expert
                assert expert is None or expert == layout.coordinates(rank)["dp"] % layout.ep or layout.ep == 1
    assert not [name for name, found in boxes.items() if uncovered(cuts.atoms[name].shape, found) is not None]


def test_slices_of_a_rank_are_packed_like_the_whole() -> None:
    """Two of four ranks share a key/value head; the local tensor is that of a model of the local sizes."""
    config = {**model_config("qwen3_moe"), "moe_intermediate_size": 8}
    atoms = numbered("qwen3_moe", config)
    cuts = RankCuts(load_family("qwen3_moe"), config, ParallelLayout(tp=4), "mindformers")
    for rank in range(4):
        tensors = {spelled.name: filled(piece, atoms) for spelled, piece in cuts.tensors(rank)}
        q, k, v = (atoms[f"model.layers.0.self_attn.{part}_proj.weight"] for part in "qkv")
        head = rank // 2
        own = [q[rank * 6 : rank * 6 + 6], k[head * 6 : head * 6 + 6], v[head * 6 : head * 6 + 6]]
        assert np.array_equal(tensors["decoder.layers.0.self_attention.linear_qkv.weight"], np.concatenate(own))
        gate = atoms["model.layers.0.mlp.experts.1.gate_proj.weight"]
        assert np.array_equal(
            tensors["decoder.layers.0.mlp.experts.weight1"][12:24, :2], gate[rank * 2 : rank * 2 + 2].T
        )


def test_a_tensor_of_which_parts_are_held_is_refused() -> None:
    config = model_config("qwen3_moe")
    family = load_family("qwen3_moe")
    shapes = {name: atom.shape for name, atom in family.atoms(config).items()}
    missing = "model.layers.0.mlp.experts.1.up_proj.weight"
    fused = next(s for s in family.spelling(config, "hf_fused") if missing in s.atoms)
    with pytest.raises(ValueError, match="only gate are held"):
        fused.arrangement(lambda name: None if name == missing else Arrangement.of(name, shapes[name]), {})
    assert fused.arrangement(lambda name: None, {}) is None


def test_unknown_spelling_is_refused() -> None:
    with pytest.raises(
        UserError, match=r"no spelling 'megatron' \(known: hf, hf_fused, hf_fused_transposed, mindformers"
    ):
        load_family("qwen3_moe").spelling(model_config("qwen3_moe"), "megatron")


def test_names_that_a_model_does_not_have_are_explained() -> None:
    family, config = load_family("qwen3_moe"), model_config("qwen3_moe")
    said = family.explain("model.layers.0.mlp.experts.3.up_proj.weight", config)
    assert said.endswith("which this model (3 layers, 3 experts) does not have here")
    assert family.explain("model.layers.0.mlp.experts.03.up_proj.weight", config).endswith("has no such name")
