"""What `from_pretrained` reads, refuses and writes back."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
import torch
import transformers
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tiny_models import CONFIGS, SIZES, build

from mappings.errors import UserError
from mappings.families import load_family
from mappings.formats.manifest import Manifest, hash_file, weights_file
from mappings.layout import ParallelLayout
from ms_models import AutoModelForCausalLM
from ms_models.auto import register
from ms_models.families.causal_lm import CausalLM
from ms_models.families.gemma2 import Gemma2ForCausalLM
from ms_models.families.llama import LlamaForCausalLM
from ms_models.families.mistral import MistralForCausalLM
from ms_models.families.qwen2 import Qwen2ForCausalLM
from ms_models.families.qwen3 import Qwen3ForCausalLM
from ms_models.layers.rotary import RopeConfig, inverse_frequencies
from ms_models.parallel.mesh import Mesh
from ms_models.saving import encode

ms.runtime.launch_blocking()

KINDS: dict[str, type[CausalLM]] = {
    "gemma2": Gemma2ForCausalLM,
    "llama": LlamaForCausalLM,
    "mistral": MistralForCausalLM,
    "qwen2": Qwen2ForCausalLM,
    "qwen3": Qwen3ForCausalLM,
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("saved") / "model"
    build("qwen2", directory)
    return directory


@pytest.fixture
def copy(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "copy"))


def tensors(directory: Path) -> dict[str, torch.Tensor]:
    return {name: tensor for file in directory.glob("*.safetensors") for name, tensor in load_file(file).items()}


def edit_config(directory: Path, **changes: Any) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def loaded(directory: Path, mesh: Mesh | None = None) -> dict[str, np.ndarray]:
    model = AutoModelForCausalLM.from_pretrained(directory, mesh)
    return {parameter.name: parameter.asnumpy() for parameter in model.get_parameters()}


def merge(directory: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    """Rewrites the weights as one file after a change."""
    values = tensors(directory)
    change(values)
    for file in directory.glob("*.safetensors*"):
        file.unlink()
    save_file(values, directory / "model.safetensors", {"format": "pt"})


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", ["qwen2", "llama3-tied-biases", "qwen3-biases", "gemma2"])
def test_round_trip_is_bit_identical(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    reference = build(name, tmp_path / "hf", dtype)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "hf")
    for parameter in model.get_parameters():
        expected = reference.state_dict()[parameter.name].float().numpy()
        assert np.array_equal(parameter.asnumpy().view(np.uint32), expected.view(np.uint32)), parameter.name
    model.save_pretrained(tmp_path / "back")
    before, after = tensors(tmp_path / "hf"), tensors(tmp_path / "back")
    assert len(before) > 20 and set(before) == set(after)
    for key, tensor in before.items():
        assert after[key].dtype == dtype and torch.equal(after[key].view(torch.uint8), tensor.view(torch.uint8)), key
    for side in ("config.json", "generation_config.json"):
        assert (tmp_path / "hf" / side).read_bytes() == (tmp_path / "back" / side).read_bytes()
    indices = [json.loads((tmp_path / d / "model.safetensors.index.json").read_text()) for d in ("hf", "back")]
    assert indices[0]["weight_map"] == indices[1]["weight_map"]
    assert indices[0]["metadata"]["total_size"] == indices[1]["metadata"]["total_size"]
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "back")
    assert torch.equal(again.lm_head.weight.float(), reference.lm_head.weight.float())


def test_changed_weights_are_saved(saved: Path, tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(saved)
    next(p for p in model.get_parameters() if p.name == "model.norm.weight").set_data(
        ms.Tensor(np.full(48, 3.5, np.float32))
    )
    model.save_pretrained(tmp_path / "out")
    before, after = tensors(saved), tensors(tmp_path / "out")
    assert torch.equal(after["model.norm.weight"], torch.full((48,), 3.5))
    assert all(torch.equal(after[name], before[name]) for name in before if name != "model.norm.weight")


def test_rounding_equals_torch() -> None:
    rng = np.random.default_rng(0)
    values = rng.integers(0, 2**32, 20000, np.uint64).astype(np.uint32).view(np.float32)
    values = values[np.abs(values) < 60000]  # NaN and what overflows fp16 left out
    values[:4] = [0.0, -0.0, 1 + 2**-8, 1 + 3 * 2**-8]  # ties go to even
    for dtype, kind in (("BF16", torch.bfloat16), ("F16", torch.float16)):
        expected = torch.from_numpy(values).to(kind).view(torch.uint16).numpy()
        assert np.array_equal(np.frombuffer(encode("x", values, dtype)[2], "<u2"), expected)
    nan = np.array([0x7F800001, 0xFFFFFFFF], np.uint32).view(np.float32)
    bits = np.frombuffer(encode("x", nan, "BF16")[2], "<u2")
    assert ((bits & 0x7F80) == 0x7F80).all() and (bits & 0x7F).all()
    for dtype, large in (("F16", 7e4), ("BF16", 3.4e38)):
        with pytest.raises(UserError, match=f"x: 1 values are too large for {dtype}"):
            encode("x", np.array([1.0, large, np.inf], np.float32), dtype)


def test_a_failed_save_leaves_nothing(saved: Path, tmp_path: Path) -> None:
    build("qwen2", tmp_path / "hf", torch.float16)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "hf")
    next(iter(model.get_parameters())).set_data(ms.Tensor(np.full((101, 48), 1e6, np.float32)))
    with pytest.raises(UserError, match="too large for F16"):
        model.save_pretrained(tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["hf"]
    with pytest.raises(UserError, match="already exists"):
        model.save_pretrained(saved)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_loads_its_own_pieces(saved: Path, rank: int) -> None:
    whole = tensors(saved)
    pieces = loaded(saved, Mesh(ParallelLayout(tp=2), rank))
    assert set(pieces) == set(whole)
    for name, piece in pieces.items():
        full = whole[name].numpy()
        if any(kind in name for kind in ("o_proj.weight", "down_proj.weight")):
            expected = np.split(full, 2, axis=1)[rank]
        elif "norm" in name:
            expected = full
        elif "embed" in name or "lm_head" in name:  # 101 rows, padded to 102
            expected = np.pad(full, ((0, 1), (0, 0)))[51 * rank : 51 * rank + 51]
        else:
            expected = np.split(full, 2, axis=0)[rank]
        assert np.array_equal(piece, expected), name


def shard_by_hand(source: Path, target: Path, layout: ParallelLayout) -> None:
    """A sharded checkpoint made from what a rank loads (checked above), with the safetensors library."""
    target.mkdir()
    shutil.copy(source / "config.json", target)
    for rank in range(layout.tp):
        values = {name: torch.from_numpy(a) for name, a in loaded(source, Mesh(layout, rank)).items()}
        save_file(values, target / weights_file(rank))
    Manifest(
        family="qwen2",
        layout=layout,
        weights={rank: weights_file(layout.weight_owner(rank)) for rank in range(layout.world_size)},
        files={path.name: hash_file(path) for path in target.iterdir()},
        versions={},
    ).write(target)


def test_a_sharded_directory_loads_for_its_layout_only(saved: Path, tmp_path: Path) -> None:
    shard_by_hand(saved, tmp_path / "sharded", ParallelLayout(tp=2))
    for rank in (0, 1, 2, 3):  # dp is free
        mesh = Mesh(ParallelLayout(tp=2, dp=2), rank)
        expected = loaded(saved, mesh)
        for name, piece in loaded(tmp_path / "sharded", mesh).items():
            assert np.array_equal(piece, expected[name])
    for layout in (ParallelLayout(), ParallelLayout(tp=2, vocab_multiple=8)):
        with pytest.raises(UserError, match=r"sharded for (tp=2|vocab_multiple=1), this run has"):
            AutoModelForCausalLM.from_pretrained(tmp_path / "sharded", Mesh(layout))
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "sharded", Mesh(ParallelLayout(tp=2)))
    with pytest.raises(UserError, match="msmigrate weights export"):
        model.save_pretrained(tmp_path / "out")


def test_a_damaged_sharded_file_is_refused(saved: Path, tmp_path: Path) -> None:
    shard_by_hand(saved, tmp_path / "sharded", ParallelLayout(tp=2))
    path = tmp_path / "sharded" / weights_file(1)
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)
    AutoModelForCausalLM.from_pretrained(tmp_path / "sharded", Mesh(ParallelLayout(tp=2), 0))
    with pytest.raises(UserError, match="damaged"):
        AutoModelForCausalLM.from_pretrained(tmp_path / "sharded", Mesh(ParallelLayout(tp=2), 1))
    path.unlink()
    with pytest.raises(UserError, match="missing"):
        AutoModelForCausalLM.from_pretrained(tmp_path / "sharded", Mesh(ParallelLayout(tp=2), 1))


def test_every_mismatch_is_listed_in_one_line(copy: Path) -> None:
    def change(values: dict[str, torch.Tensor]) -> None:
        del values["model.norm.weight"]
        values["model.layers.9.extra.weight"] = torch.zeros(2)
        values["lm_head.weight"] = values["lm_head.weight"].T.contiguous()
        values["model.layers.0.mlp.up_proj.weight"] = torch.zeros(76, 48, dtype=torch.int8)

    merge(copy, change)
    with pytest.raises(UserError) as caught:
        AutoModelForCausalLM.from_pretrained(copy)
    text = str(caught.value)
    assert "\n" not in text
    for part in (
        "missing: model.norm.weight",
        "unexpected: model.layers.9.extra.weight",
        "wrong shape: lm_head.weight [48, 101] instead of [101, 48]",
        "model.layers.0.mlp.up_proj.weight I8",
    ):
        assert part in text


def test_old_buffers_and_tied_copies_are_not_unexpected(copy: Path) -> None:
    before = loaded(copy)
    merge(copy, lambda values: values.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}))
    edit_config(copy, tie_word_embeddings=True)
    after = loaded(copy)
    assert set(before) - set(after) == {"lm_head.weight"}
    assert all(np.array_equal(before[name], value) for name, value in after.items())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "mamba9"}, "model_type 'mamba9' is not supported"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"use_sliding_window": True}, "use_sliding_window is true"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types sliding_attention"),
        ({"rope_parameters": {"rope_type": "axial", "rope_theta": 1e4}}, "rope type 'axial'"),
        ({"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4}}, "factor of the rotary embedding"),
        ({"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}}, "partial_rotary_factor 0.5"),
        ({"rope_parameters": {"rope_theta": "big"}}, "rope_theta of the rotary embedding"),
        ({"attention_dropout": 0.1}, "attention_dropout"),
        ({"quantization_config": {"bits": 4}}, "quantized"),
        ({"num_key_value_heads": 4}, "num_key_value_heads=4 does not divide num_attention_heads=6"),
        ({"rms_norm_eps": 0}, "rms_norm_eps must be a positive number"),
        ({"eos_token_id": "</s>"}, "eos_token_id"),
        ({"num_hidden_layers": 2}, "unexpected: model.layers.2."),
    ],
)
def test_unsupported_settings_are_refused(copy: Path, changes: dict[str, Any], message: str) -> None:
    edit_config(copy, **changes)
    with pytest.raises(UserError, match=message.replace(".", r"\.")):
        AutoModelForCausalLM.from_pretrained(copy)


@pytest.mark.parametrize("window", [0, True, "all"])
def test_an_odd_window_is_refused(window: Any) -> None:
    raw = CONFIGS["mistral"].to_dict()
    with pytest.raises(UserError, match="sliding_window must be a positive whole number or null"):
        MistralForCausalLM.read_config({**raw, "sliding_window": window}, load_family("mistral"))
    with pytest.raises(UserError, match="layer_types"):
        MistralForCausalLM.read_config({**raw, "layer_types": ["full_attention"] * 3}, load_family("mistral"))
    assert (
        MistralForCausalLM.read_config({**raw, "sliding_window": None}, load_family("mistral")).windows == (None,) * 3
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_activation": "gelu"}, "hidden_activation 'gelu'"),
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ({"layer_types": ["full_attention"]}, "layer_types must name 3 layers"),
        ({"layer_types": ["chunked_attention"] * 3}, "sliding_attention, full_attention"),
        ({"query_pre_attn_scalar": 0}, "query_pre_attn_scalar must be a positive number"),
        ({"final_logit_softcapping": "30"}, "final_logit_softcapping must be a positive number"),
    ],
)
def test_gemma2_refuses_what_it_does_not_compute(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Gemma2ForCausalLM.read_config({**CONFIGS["gemma2"].to_dict(), **changes}, load_family("gemma2"))


def test_what_config_json_leaves_out_is_what_transformers_takes() -> None:
    left_out = ("layer_types", "sliding_window", "pad_token_id", "eos_token_id", "query_pre_attn_scalar")
    caps = ("attn_logit_softcapping", "final_logit_softcapping")
    plain = transformers.Gemma2Config(**SIZES, head_dim=10).to_dict()
    bare = {key: value for key, value in plain.items() if key not in left_out + caps}
    family = load_family("gemma2")
    assert Gemma2ForCausalLM.read_config(bare, family) == Gemma2ForCausalLM.read_config(plain, family)
    uncapped = Gemma2ForCausalLM.read_config({**plain, **dict.fromkeys(caps)}, family)
    assert uncapped.attention_cap is None and uncapped.logit_cap is None


def test_a_layout_that_does_not_fit_is_refused(saved: Path) -> None:
    with pytest.raises(UserError, match="tp=4"):
        AutoModelForCausalLM.from_pretrained(saved, Mesh(ParallelLayout(tp=4)))
    with pytest.raises(UserError, match="no such directory"):
        AutoModelForCausalLM.from_pretrained(saved / "nowhere")


def test_sliding_window_that_is_off_is_accepted(copy: Path) -> None:
    edit_config(copy, use_sliding_window=False, sliding_window=4096, max_window_layers=28)
    assert AutoModelForCausalLM.from_pretrained(copy).config.model_type == "qwen2"


@pytest.mark.parametrize("name", CONFIGS)
def test_spellings_of_transformers_4_and_5_mean_the_same(name: str) -> None:
    five = CONFIGS[name].to_dict()
    rope = dict(five["rope_parameters"])
    four = {key: value for key, value in five.items() if key not in ("rope_parameters", "dtype")}
    four |= {"rope_theta": rope.pop("rope_theta"), "torch_dtype": "float32"}
    four["rope_scaling"] = rope if rope["rope_type"] != "default" else None
    kind = KINDS[five["model_type"]]
    family = load_family(five["model_type"])
    assert kind.read_config(four, family) == kind.read_config(five, family)
    assert kind.read_config(five, family).rope.kind == ("llama3" if "llama3" in name else "default")


@pytest.mark.parametrize("theta", [1e4, 5e5, 1e6])
@pytest.mark.parametrize("kind", ["default", "llama3"])
def test_frequencies_equal_transformers(kind: str, theta: float) -> None:
    rope = {"rope_type": kind, "rope_theta": theta}
    if kind == "llama3":
        rope |= {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 48}
    config = transformers.LlamaConfig(**SIZES, head_dim=128, rope_parameters=rope)
    expected = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding(config).inv_freq.numpy()
    found = inverse_frequencies(RopeConfig.from_json(config.to_dict()), 128)
    # at most the last bit of fp32 for the power, a few more after the interpolation
    np.testing.assert_allclose(found, expected, rtol=2.4e-7 if kind == "default" else 1e-6)
    assert found.dtype == np.float32


def test_a_taken_model_type_names_its_owner() -> None:
    with pytest.raises(UserError, match=r"'llama' is already .*\.Llama\w* \(model\.py:\d+\); .*llama_custom"):
        register("llama", Qwen2ForCausalLM)


def test_saved_files_say_what_transformers_wants_to_read(saved: Path, tmp_path: Path) -> None:
    AutoModelForCausalLM.from_pretrained(saved).save_pretrained(tmp_path / "out")
    files = sorted((tmp_path / "out").glob("*.safetensors"))
    assert len(files) > 1
    for file in files:
        with safe_open(file, "np") as handle:
            assert handle.metadata() == {"format": "pt"}
