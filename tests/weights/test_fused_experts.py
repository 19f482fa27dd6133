"""The older fused form of experts, [experts, inputs, outputs], there and back by the commands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hf_checkpoints import tensors_of, write_model
from random_models import SMALL

from mappings.families import load_family
from mappings.layout import ParallelLayout
from migrate.weights.command import convert, diff, export, verify
from migrate.weights.destinations import Destination

TRANSPOSED = "hf_fused_transposed"
MODELS: dict[str, dict[str, Any]] = {
    # One dense layer before the experts, shared experts, MTP layers: none of them is touched.
    "deepseek_v3": {"vocab_size": 33, "n_routed_experts": 4, "intermediate_size": 20, "moe_intermediate_size": 6},
    "glm4_moe": {"vocab_size": 33, "n_routed_experts": 4, "intermediate_size": 20, "moe_intermediate_size": 6},
}
LAYOUTS = {
    "sharded": ParallelLayout(tp=2, dp=2, ep=2, vocab_multiple=4),
    "strategy": ParallelLayout(tp=2, dp=4, ep=2, zero=3),
    "iteration": ParallelLayout(dp=4, ep=4, zero=1),
}


@pytest.mark.parametrize("name", MODELS)
def test_transposed_experts_there_and_back(tmp_path: Path, name: str) -> None:
    model = {"model_type": load_family(name).model_types[0], **SMALL[name]["config"], **MODELS[name]}
    write_model(tmp_path / "hf", model, dtype="BF16", shards=2)
    target = Destination("hf", spelling=TRANSPOSED)
    assert convert(tmp_path / "hf", tmp_path / "fused", destination=target).exit_code == 0
    single, fused = tensors_of(tmp_path / "hf"), tensors_of(tmp_path / "fused")
    checked = 0
    for key, (_, shape, data) in fused.items():
        if not key.endswith("experts.gate_up_proj"):
            continue
        array = np.frombuffer(data, "<u2").reshape(shape)
        for expert in range(4):
            parts = [
                np.frombuffer(single[f"{key.removesuffix('gate_up_proj')}{expert}.{part}_proj.weight"][2], "<u2")
                for part in ("gate", "up")
            ]
            for half, part in zip(np.split(array[expert], 2, axis=1), parts, strict=True):
                assert np.array_equal(half.T.reshape(-1), part)
                checked += 1
    assert checked >= 8 and len(fused) < len(single)
    assert verify(tmp_path / "fused", source=tmp_path / "hf").exit_code == 0
    for container, layout in LAYOUTS.items():
        spelling = "hf" if container == "sharded" else TRANSPOSED
        out, back = tmp_path / container, tmp_path / f"back_{container}"
        destination = Destination(container, layout, spelling)
        assert convert(tmp_path / "fused", out, destination=destination).exit_code == 0
        assert verify(out, source=tmp_path / "hf").exit_code == 0
        assert diff(tmp_path / "hf", out).exit_code == 0
        assert export(out, back).exit_code == 0  # the very files of its source, which was fused
        for path in (tmp_path / "fused").iterdir():
            assert (back / path.name).read_bytes() == path.read_bytes(), path.name
    assert convert(tmp_path / "sharded", tmp_path / "apart", destination=Destination("hf")).exit_code == 0
    assert tensors_of(tmp_path / "apart") == single
