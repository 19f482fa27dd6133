"""Hugging Face directories of every kind: low precision, fused experts, pickles, ties; and what comes out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import yaml
from container_runs import elements, errors, to_hf, to_mindspore, to_strategy, write
from hf_checkpoints import config, tensors_of, write_model
from safetensors.torch import save_file

from mappings.errors import UserError
from mappings.families import family_for_config, load_family
from mappings.formats import mindspore_ckpt
from mappings.layout import ParallelLayout
from migrate.weights.containers import ckpt, hf, mindspore, strategy
from migrate.weights.containers.content import Content
from migrate.weights.containers.expected import whole
from migrate.weights.engine import forms

CONFIGS = yaml.safe_load((Path(__file__).parents[1] / "mappings_core/family_configs.yaml").read_text(encoding="utf-8"))


def small(name: str, **changes) -> dict:
    return {"model_type": load_family(name).model_types[0], **CONFIGS[name]["config"], **changes}


def write_directory(folder: Path, model: dict, tensors: dict[str, torch.Tensor]) -> None:
    folder.mkdir(parents=True)
    save_file({name: t.contiguous() for name, t in tensors.items()}, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(model))


def random_tensors(model: dict, spelling: str = "hf", dtype=torch.float32, seed: int = 0) -> dict[str, torch.Tensor]:
    rng = torch.Generator().manual_seed(seed)
    tensors = whole(family_for_config(model), model, spelling)
    return {name: torch.randn(e.arrangement.shape, generator=rng).to(dtype) for name, e in tensors.items()}


def raw(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def contents(folder: Path) -> dict[str, bytes]:
    return {name: data for name, (_, _, data) in tensors_of(folder).items()}


def test_fp8_blocks_become_bf16_everywhere(tmp_path):
    model = small("deepseek_v3", quantization_config={"weight_block_size": [8, 4]})
    tensors = random_tensors(model, dtype=torch.bfloat16)
    expected = dict(tensors)
    for name, tensor in list(tensors.items()):
        if tensor.ndim == 2 and "embed" not in name and "head" not in name and not name.endswith("mlp.gate.weight"):
            rows, columns = tensor.shape
            codes, scales = tensor.to(torch.float8_e4m3fn), torch.rand(-(-rows // 8), -(-columns // 4)) + 0.1
            tensors[name], tensors[name + "_scale_inv"] = codes, scales
            spread = scales.repeat_interleave(8, 0).repeat_interleave(4, 1)[:rows, :columns]
            expected[name] = (codes.float() * spread).to(torch.bfloat16)
    write_directory(tmp_path / "hf", model, tensors)
    source = hf.read(tmp_path / "hf")
    assert errors(source) == [] and len(tensors) > len(expected) + 20
    wanted = {name: raw(tensor) for name, tensor in expected.items()}
    to_hf(source, tmp_path / "back", source.extra["record"])
    assert contents(tmp_path / "back") == wanted
    to_mindspore(source, tmp_path / "ms", "mindformers")
    again = mindspore.read(tmp_path / "ms", config=model)
    assert errors(again) == []
    to_hf(again, tmp_path / "once more")
    assert contents(tmp_path / "once more") == wanted


def test_fp8_values_and_scales_in_several_files(tmp_path):
    """As in published checkpoints, a scale may be in the file before or behind that of its values."""
    model = small("deepseek_v3", quantization_config={"weight_block_size": [8, 4]})
    tensors = random_tensors(model, dtype=torch.bfloat16)
    kept = ("embed", "head", "mlp.gate.")
    matrices = [name for name, tensor in tensors.items() if tensor.ndim == 2 and not any(k in name for k in kept)]
    for name in matrices:
        rows, columns = tensors[name].shape
        tensors[name] = tensors[name].to(torch.float8_e4m3fn)
        tensors[name + "_scale_inv"] = torch.rand(-(-rows // 8), -(-columns // 4)) + 0.1
    write_directory(tmp_path / "one", model, tensors)
    scales = [n for n in tensors if n.endswith("_scale_inv")]
    moved = {*scales[::2], *(n.removesuffix("_scale_inv") for n in scales[1::2])}
    (tmp_path / "two").mkdir()
    (tmp_path / "two/config.json").write_text(json.dumps(model))
    weight_map = {n: f"model-0000{1 + (n in moved)}-of-00002.safetensors" for n in tensors}
    for file in sorted(set(weight_map.values())):
        save_file({n: t for n, t in tensors.items() if weight_map[n] == file}, tmp_path / "two" / file)
    (tmp_path / "two/model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    for name in ("one", "two"):
        source = hf.read(tmp_path / name)
        assert errors(source) == []
        to_hf(source, tmp_path / f"{name} back")
    assert contents(tmp_path / "one back") == contents(tmp_path / "two back")


@pytest.mark.parametrize(
    "fault", ["no scale", "wrong grid", "no block size", "scale alone", "no codes", "whole scales"]
)
def test_faults_of_fp8_are_findings(tmp_path, fault):
    model = small("qwen3_moe", quantization_config={"weight_block_size": [8, 4]})
    arrays = random_tensors(model, dtype=torch.bfloat16)
    name = "model.layers.0.self_attn.q_proj.weight"
    rows, columns = arrays[name].shape
    arrays[name] = arrays[name].to(torch.float8_e4m3fn)
    arrays[name + "_scale_inv"] = torch.ones(-(-rows // 8), -(-columns // 4))
    if fault == "no scale":
        del arrays[name + "_scale_inv"]
    if fault == "wrong grid":
        arrays[name + "_scale_inv"] = torch.ones(1, 1)
    if fault == "no block size":
        del model["quantization_config"]
    if fault == "no codes":  # weights that were dequantised already, beside the scales
        arrays[name] = arrays[name].to(torch.bfloat16)
    if fault == "whole scales":
        arrays[name + "_scale_inv"] = arrays[name + "_scale_inv"].to(torch.int32)
    if fault == "scale alone":
        del arrays[name]
    write_directory(tmp_path / "hf", model, arrays)
    found = errors(hf.read(tmp_path / "hf"))
    assert [(code, tensor) for code, tensor, _ in found] == [("W004", name)], found


def test_mxfp4_experts_become_those_of_transformers(tmp_path):
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    model = small("gpt_oss", hidden_size=64, intermediate_size=32, head_dim=16)
    arrays = random_tensors(model, dtype=torch.bfloat16)
    rng = torch.Generator().manual_seed(2)
    expected = {}
    for name in [name for name in arrays if name.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        experts, inputs, outputs = arrays.pop(name).shape  # transformers' own orientation
        blocks = torch.randint(0, 256, (experts, outputs, inputs // 32, 16), generator=rng, dtype=torch.uint8)
        scales = torch.randint(100, 140, blocks.shape[:-1], generator=rng, dtype=torch.uint8)
        arrays[name + "_blocks"], arrays[name + "_scales"] = blocks, scales
        decoded = convert_moe_packed_tensors(blocks, scales, dtype=torch.bfloat16)
        assert decoded.shape == (experts, inputs, outputs)
        expected[name] = raw(decoded)
    write_directory(tmp_path / "hf", model, arrays)
    source = hf.read(tmp_path / "hf")
    assert errors(source) == [] and source.extra["spelling"] == "mxfp4"
    to_hf(source, tmp_path / "back", source.extra["record"])
    back = contents(tmp_path / "back")
    assert {name: back[name] for name in expected} == expected
    assert set(back) == {name.removesuffix("_blocks") for name in arrays if not name.endswith("_scales")}


@pytest.mark.parametrize("spelling", ["hf_fused", "hf_fused_transposed"])
def test_fused_experts_are_taken_apart_and_put_together(tmp_path, spelling):
    model = small("qwen3_moe", hidden_size=16)
    arrays = random_tensors(model, spelling)
    write_directory(tmp_path / "hf", model, arrays)
    source = hf.read(tmp_path / "hf")
    assert errors(source) == [] and source.extra["spelling"] == spelling
    to_hf(source, tmp_path / "apart")
    apart = contents(tmp_path / "apart")
    fused = arrays["model.layers.1.mlp.experts.gate_up_proj"]
    for expert in range(3):
        one = fused[expert] if spelling == "hf_fused" else fused[expert].T
        assert apart[f"model.layers.1.mlp.experts.{expert}.gate_proj.weight"] == raw(one[:7])
        assert apart[f"model.layers.1.mlp.experts.{expert}.up_proj.weight"] == raw(one[7:])
    (tmp_path / "apart/config.json").write_text(json.dumps(model))
    again = hf.read(tmp_path / "apart")
    content = Content.of(again, spelling)
    files = hf.layout(content, recorded=source.extra["record"])
    write(again, files, tmp_path / "together")
    assert (tmp_path / "together/model.safetensors").read_bytes() == (tmp_path / "hf/model.safetensors").read_bytes()


@pytest.mark.parametrize("sharded", [False, True])
def test_pickled_weights_with_views_are_read(tmp_path, sharded):
    model = config("llama", tie_word_embeddings=True)
    arrays = random_tensors(model)
    tensors = dict(arrays)
    name = "model.layers.0.mlp.gate_proj.weight"
    tensors[name] = tensors[name].T.contiguous().T  # columns side by side
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]  # one storage, two names
    folder = tmp_path / "hf"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(model))
    if sharded:
        names = list(tensors)
        parts = {f"pytorch_model-0000{n}-of-00002.bin": names[n - 1 :: 2] for n in (1, 2)}
        for file, held in parts.items():
            torch.save({one: tensors[one] for one in held}, folder / file)
        index = {"weight_map": {one: file for file, held in parts.items() for one in held}}
        (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    else:
        torch.save(tensors, folder / "pytorch_model.bin")
    source = hf.read(folder)
    assert errors(source) == [] and "record" not in source.extra
    assert source.extra["tied"] == {"lm_head.weight": "model.embed_tokens.weight"}
    to_hf(source, tmp_path / "back")
    assert contents(tmp_path / "back") == {name: raw(tensor) for name, tensor in arrays.items()}


def test_a_tied_model_may_store_either_name_or_both(tmp_path):
    model = config("llama", tie_word_embeddings=True)
    written = {}
    embedding = "model.embed_tokens.weight"
    for case, tied_copy, without in (("both", True, ()), ("one", False, ()), ("other", True, (embedding,))):
        write_model(tmp_path / case, model, tied_copy=tied_copy, without=without)
        source = hf.read(tmp_path / case)
        assert errors(source) == []
        to_strategy(source, tmp_path / f"{case} ranks", ParallelLayout(tp=2, pp=2))
        again = strategy.read(tmp_path / f"{case} ranks", config=model)
        assert errors(again) == []
        held = {t.stored.file for t in again.tensors if t.stored.name == embedding}
        assert len(held) == 4  # the last stage needs it, too
        written[case] = elements(again)
        to_hf(again, tmp_path / f"{case} back", source.extra["record"])
        path = "model.safetensors"
        assert (tmp_path / f"{case} back" / path).read_bytes() == (tmp_path / case / path).read_bytes()
    assert written["both"] == written["one"] == written["other"]


def test_a_ckpt_in_slices_is_written_and_read(tmp_path, monkeypatch):
    monkeypatch.setattr(mindspore_ckpt, "SLICE_BYTES", 1000)
    monkeypatch.setattr(forms, "SLICE_BYTES", 1000)
    monkeypatch.setattr(mindspore_ckpt.ckpt_layout, "__defaults__", (1000,))
    model = config("llama")
    write_model(tmp_path / "hf", model, dtype="BF16")
    source = hf.read(tmp_path / "hf")
    write(source, ckpt.layout(Content.of(source, "mindformers")), tmp_path / "a")
    found = ckpt.read(tmp_path / "a/model.ckpt", config=model, spelling="mindformers")
    assert errors(found) == [] and elements(found) == elements(source)
    assert sum("(slice 2 of 2)" in t.stored.name for t in found.tensors) > 3
    to_hf(found, tmp_path / "back", source.extra["record"])
    assert (tmp_path / "back/model.safetensors").read_bytes() == (tmp_path / "hf/model.safetensors").read_bytes()


def listed(record: dict) -> list:
    return record["files"]["model.safetensors"]["tensors"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: r["files"].update({"../x.safetensors": {}}), "no plain safetensors name"),
        (lambda r: r["files"]["model.safetensors"].pop("tensors"), "is malformed"),
        (lambda r: listed(r).append(["other", "F32", [1]]), "lists 'other', which the model does not have"),
        (lambda r: listed(r).append(listed(r)[0]), "which is already listed"),
        (lambda r: listed(r).pop(), "lists no file for"),
        (lambda r: r.update(files={}), r"lists no file for .* \(21 in all\)"),
        (lambda r: r.update(files=[]), "'files' is no dict"),
        (lambda r: r.update(tied={"lm_head.weight": "model.norm.weight"}), r"ties 'lm_head\.weight' to"),
    ],
)
def test_a_record_that_contradicts_the_model_is_refused(tmp_path, change, message):
    write_model(tmp_path / "hf", config("llama"))
    source = hf.read(tmp_path / "hf")
    record = json.loads(json.dumps(source.extra["record"]))
    change(record)
    with pytest.raises(UserError, match=message):
        hf.layout(Content.of(source), recorded=record)


def test_a_cast_changes_weights_but_not_what_must_stay(tmp_path):
    model = small("deepseek_v3")
    arrays = random_tensors(model)
    write_directory(tmp_path / "hf", model, arrays)
    source = hf.read(tmp_path / "hf")
    content = Content.of(source, cast="BF16")
    write(source, hf.layout(content), tmp_path / "out")
    kinds = {name: dtype for name, (dtype, _, _) in tensors_of(tmp_path / "out").items()}
    kept = {name for name, dtype in kinds.items() if dtype == "F32"}
    assert kept and all(name.endswith("e_score_correction_bias") for name in kept)
    name = "model.layers.1.mlp.experts.0.up_proj.weight"
    assert contents(tmp_path / "out")[name] == raw(arrays[name].to(torch.bfloat16))


def test_files_by_size_have_an_index(tmp_path):
    write_model(tmp_path / "hf", config("llama"))
    source = hf.read(tmp_path / "hf")
    files = hf.layout(Content.of(source), max_shard_size=4000)
    assert len(files) > 3 and files[0].name == f"model-00001-of-{len(files):05d}.safetensors"
    write(source, files, tmp_path / "out")
    hf.finish(tmp_path / "out", files)
    index = json.loads((tmp_path / "out/model.safetensors.index.json").read_text())
    assert index["weight_map"] == {t.name: file.name for file in files for t in file.tensors}
    assert index["metadata"]["total_size"] == sum(len(data) for _, _, data in tensors_of(tmp_path / "hf").values())
    (tmp_path / "out/config.json").write_text(json.dumps(config("llama")))
    assert elements(hf.read(tmp_path / "out")) == elements(source)
