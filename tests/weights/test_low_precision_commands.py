"""FP8 and MXFP4 checkpoints through `convert` and `export`: what transformers makes of them, and what is said of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file
from test_container_hf import random_tensors, small, write_directory

from mappings.layout import ParallelLayout
from migrate.weights.command import convert, export, verify
from migrate.weights.destinations import Destination


def fp8_directory(folder: Path, block: tuple[int, int] = (2, 2)) -> None:
    """DeepSeek-V3 in small. Blocks at the edges are whole by default: transformers 5.24 cannot dequantise others."""
    quantised = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": block}
    sizes = {"hidden_size": 16, "moe_intermediate_size": 16, "q_lora_rank": 6}
    changes: dict[str, Any] = {"quantization_config": quantised, "dtype": "bfloat16", **sizes}
    model = small("deepseek_v3", architectures=["DeepseekV3ForCausalLM"], **changes)
    tensors = random_tensors(model, dtype=torch.bfloat16)
    for name, tensor in list(tensors.items()):
        if tensor.ndim == 2 and "embed" not in name and "head" not in name and not name.endswith("mlp.gate.weight"):
            rows, columns = tensor.shape
            tensors[name] = tensor.to(torch.float8_e4m3fn)
            tensors[name + "_scale_inv"] = torch.rand(-(-rows // block[0]), -(-columns // block[1])) * 0.2 + 0.1
    write_directory(folder, model, tensors)


def mxfp4_directory(folder: Path) -> None:
    """gpt-oss in small."""
    settings = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}
    changes: dict[str, Any] = {"quantization_config": settings, "dtype": "bfloat16"}
    model = small(
        "gpt_oss", architectures=["GptOssForCausalLM"], hidden_size=64, intermediate_size=32, head_dim=16, **changes
    )
    arrays = random_tensors(model, dtype=torch.bfloat16)
    rng = torch.Generator().manual_seed(2)
    for name in [name for name in arrays if name.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        experts, inputs, outputs = arrays.pop(name).shape
        shape = (experts, outputs, inputs // 32, 16)
        arrays[name + "_blocks"] = torch.randint(0, 256, shape, generator=rng, dtype=torch.uint8)
        arrays[name + "_scales"] = torch.randint(120, 127, shape[:-1], generator=rng, dtype=torch.uint8)
    write_directory(folder, model, arrays)


def logits(directory: Path) -> torch.Tensor:
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype="auto")
    assert model.dtype == torch.bfloat16
    with torch.no_grad():
        return model(torch.arange(24).reshape(2, 12) % 31).logits


@pytest.mark.parametrize(
    ("make", "lossy"),
    [(fp8_directory, "F8_E4M3 times weight_scale_inv"), (mxfp4_directory, "MXFP4")],
    ids=["fp8", "mxfp4"],
)
@pytest.mark.parametrize(
    "destination",
    [Destination(layout=ParallelLayout(tp=2, pp=2, vocab_multiple=5)), Destination("ckpt")],
    ids=["sharded", "ckpt"],
)
def test_the_export_is_what_transformers_dequantises(
    tmp_path: Path, make: Any, lossy: str, destination: Destination
) -> None:
    make(tmp_path / "hf")
    report = convert(tmp_path / "hf", tmp_path / "there", destination=destination)
    assert report.exit_code == 0, report.findings
    assert len(report.facts["lossy"]) == 1 and lossy in report.facts["lossy"][0]
    changed = [f.message for f in report.findings if f.code == "W024"]
    assert changed == ["changed: quantization_config"]
    there = tmp_path / "there"
    target = there / "model.ckpt" if destination.container == "ckpt" else there
    assert verify(target, source=tmp_path / "hf").exit_code == 0
    assert export(target, tmp_path / "back").exit_code == 0
    before, after = (json.loads((tmp_path / x / "config.json").read_text()) for x in ("hf", "back"))
    assert before.pop("quantization_config") and before == after
    assert torch.equal(logits(tmp_path / "hf"), logits(tmp_path / "back"))


@pytest.mark.parametrize(("dtype", "rounded"), [("F32", []), ("F16", ["BF16 rounded to F16"])])
def test_casts_are_listed_and_judged_only_if_allowed(tmp_path: Path, dtype: str, rounded: list[str]) -> None:
    fp8_directory(tmp_path / "hf", (8, 5))
    layout = ParallelLayout(tp=2)
    report = convert(tmp_path / "hf", tmp_path / "there", layout=layout, cast=dtype)
    assert report.exit_code == 0
    assert [step for step in report.facts["lossy"] if "weight_scale_inv" not in step] == rounded
    assert any("weight_scale_inv" in step for step in report.facts["lossy"])
    config = json.loads((tmp_path / "there/config.json").read_text())
    assert config["dtype"] == {"F32": "float32", "F16": "float16"}[dtype] and "quantization_config" not in config
    judged = verify(tmp_path / "there", source=tmp_path / "hf", cast=True)
    assert judged.exit_code == 0, judged.findings
    assert f"BF16 to {dtype}" in judged.facts["casts"]
    strict = verify(tmp_path / "there", source=tmp_path / "hf")
    assert strict.exit_code == 1 and any("the source has BF16" in f.message for f in strict.findings)


def test_blocks_that_are_cut_at_the_edges(tmp_path: Path) -> None:
    fp8_directory(tmp_path / "hf", (8, 5))
    assert convert(tmp_path / "hf", tmp_path / "there", layout=ParallelLayout(tp=2)).exit_code == 0
    assert export(tmp_path / "there", tmp_path / "back").exit_code == 0
    stored, found = (load_file(tmp_path / folder / "model.safetensors") for folder in ("hf", "back"))
    assert set(found) == {name for name in stored if not name.endswith("_scale_inv")}
    for name, tensor in found.items():
        expected = stored[name]
        if name + "_scale_inv" in stored:
            rows, columns = tensor.shape
            spread = stored[name + "_scale_inv"].repeat_interleave(8, 0).repeat_interleave(5, 1)[:rows, :columns]
            expected = (expected.float() * spread).to(torch.bfloat16)
        assert torch.equal(tensor, expected), name
    assert torch.isfinite(logits(tmp_path / "back")).all()
