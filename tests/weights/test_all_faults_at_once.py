"""A source with several faults is refused with one list of them all, exit 1, and nothing is written."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hf_checkpoints import config, write_model
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from mappings.errors import UserError
from mappings.layout import ParallelLayout
from migrate.report import Report, Severity
from migrate.weights.command import convert
from migrate.weights.destinations import Destination

MODELS: dict[str, dict[str, Any]] = {
    "qwen2": config("qwen2", vocab_size=40, num_key_value_heads=2),
    "qwen3_moe": config("qwen3_moe", num_experts=4, moe_intermediate_size=8, num_key_value_heads=2),
    "phi3": config("phi3", vocab_size=40, num_key_value_heads=2, pad_token_id=0),
}
L0, L1 = "model.layers.0.", "model.layers.1."
LOST = {
    "qwen2": [L0 + "self_attn.v_proj.weight", L1 + "self_attn.k_proj.bias"],
    "qwen3_moe": [f"{L1}mlp.experts.2.{part}_proj.weight" for part in ("gate", "up", "down")]
    + [L0 + "self_attn.v_proj.weight"],
    "phi3": [L1 + "self_attn.qkv_proj.weight"],
}
SHORTER = {"qwen2": L0 + "mlp.up_proj.weight", "qwen3_moe": f"{L0}mlp.experts.3.up_proj.weight"}
SHORTER["phi3"] = L0 + "mlp.gate_up_proj.weight"
INTEGER, EXTRA = "model.norm.weight", [L0 + "self_attn.rotary", "model.layers.2.input_layernorm.weight"]
KINDS = {"hf": Destination("hf"), "sharded": Destination(layout=ParallelLayout(tp=2))}
KINDS["strategy"] = Destination("strategy", ParallelLayout(tp=2))


def rewrite(path: Path, change: Callable[[dict[str, np.ndarray]], None]) -> None:
    with safe_open(path, "np") as file:
        metadata = file.metadata()
    arrays = load_file(path)
    change(arrays)
    path.unlink()  # links to it keep theirs
    save_file(arrays, path, metadata=metadata)


def record(source: Path, path: Path) -> None:
    """The size of a file, as a run would write it that went wrong."""
    for name in ("manifest.json", "conversion_manifest.json"):
        if (source / name).exists():
            body = json.loads((source / name).read_text())
            body["files"][path.relative_to(source).as_posix()]["bytes"] = path.stat().st_size
            (source / name).write_text(json.dumps(body))


def codes(report: Report) -> set[tuple[str, str | None]]:
    return {(found.code, found.tensor) for found in report.findings if found.severity is Severity.ERROR}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", MODELS)
def test_everything_that_is_wrong_is_in_one_report(family: str, kind: str, tmp_path: Path) -> None:
    source = tmp_path / "hf"
    write_model(source, MODELS[family])
    if kind != "hf":
        source = tmp_path / kind
        assert convert(tmp_path / "hf", source, destination=KINDS[kind]).exit_code == 0

    def spoil(arrays: dict[str, np.ndarray]) -> None:
        for name in LOST[family]:
            del arrays[name]
        arrays[SHORTER[family]] = arrays[SHORTER[family]][1:].copy()
        arrays[INTEGER] = arrays[INTEGER].view(np.int32)
        for name in EXTRA:
            arrays[name] = np.zeros(3, np.float32)

    files = sorted(source.rglob("*.safetensors"))
    assert len(files) == (1 if kind == "hf" else 2)
    rewrite(files[-1], spoil)
    record(source, files[-1])
    before = sorted(tmp_path.rglob("*"))
    expected = {("W001", name) for name in LOST[family]} | {("W002", name) for name in EXTRA}
    expected |= {("W003", SHORTER[family]), ("W004", INTEGER)}
    for destination in (Destination("ckpt"), Destination(layout=ParallelLayout(tp=2))):
        report = convert(source, tmp_path / "out", destination=destination)
        assert codes(report) == expected
        assert report.exit_code == 1 and report.stages[-1].message.endswith("nothing was written")
        assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("family", MODELS)
def test_a_tensor_in_two_shards_is_named(family: str, tmp_path: Path) -> None:
    write_model(tmp_path / "hf", MODELS[family], shards=2)
    first, second = sorted((tmp_path / "hf").glob("*.safetensors"))
    twice = next(iter(load_file(first)))
    rewrite(second, lambda arrays: arrays.update({twice: load_file(first)[twice]}))
    with pytest.raises(UserError, match=twice.replace(".", r"\.")) as caught:
        convert(tmp_path / "hf", tmp_path / "out")
    assert "\n" not in str(caught.value) and not (tmp_path / "out").exists()
