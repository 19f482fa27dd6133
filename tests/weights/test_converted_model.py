"""A repository converted by `msmigrate code`, its checkpoint by `msmigrate weights --family none`: the same logits."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mappings.errors import UserError
from migrate.code.command import convert as convert_code
from migrate.weights.command import convert_table

REPOSITORY = Path(__file__).parents[2] / "samples" / "torch_gpt"
SIZES = {"vocab_size": 61, "n_layer": 2, "n_head": 4, "n_kv_head": 2, "n_embd": 24, "hidden_dim": 40, "max_seq_len": 32}
TORCH = """
import sys, json, torch
sys.path.insert(0, sys.argv[1])
from model import GPT, GPTConfig
torch.manual_seed(3)
model = GPT(GPTConfig(**json.loads(sys.argv[4])))
for parameter in model.parameters():
    parameter.data += 0.02 * torch.randn_like(parameter)
torch.save({"model": model.state_dict(), "step": 7}, sys.argv[2])
ids = torch.arange(26).reshape(2, 13) * 7 % 61
output = model.eval()(ids)
torch.save(output[0] if isinstance(output, tuple) else output, sys.argv[3])
"""
MINDSPORE = """
import sys, json
import numpy as np
import mindspore
mindspore.runtime.launch_blocking()
sys.path.insert(0, sys.argv[1])
from model import GPT, GPTConfig
model = GPT(GPTConfig(**json.loads(sys.argv[4])))
loaded = mindspore.load_checkpoint(sys.argv[2], format="safetensors")
missing, unexpected = mindspore.load_param_into_net(model, loaded, strict_load=True)
assert not missing and not unexpected, (missing, unexpected)
model.set_train(False)
ids = mindspore.Tensor(np.arange(26).reshape(2, 13) * 7 % 61)
output = model(ids)
np.save(sys.argv[3], (output[0] if isinstance(output, tuple) else output).asnumpy())
"""


def run(script: str, *arguments: Path | str) -> None:
    command = [sys.executable, "-c", script, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]


def logits_of(path: Path) -> Any:
    return torch.load(path, weights_only=True).detach().numpy()


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The repository, converted."""
    out = tmp_path_factory.mktemp("code") / "converted"
    convert_code(REPOSITORY, out)
    return out


@pytest.mark.parametrize("tied", [True, False])
def test_the_converted_model_computes_what_torch_computes(tmp_path: Path, converted: Path, tied: bool) -> None:
    config = {**SIZES, "tie_weights": tied}
    run(TORCH, REPOSITORY, tmp_path / "m.pt", tmp_path / "torch.pt", json.dumps(config))
    table = converted / "weights_table.json"
    report = convert_table(
        tmp_path / "m.pt", tmp_path / "out", table, of_class="model.GPT", arguments={"config": config}, key="model"
    )
    assert report.exit_code == 0, report.findings
    weights = tmp_path / "out" / "model.safetensors"
    run(MINDSPORE, converted, weights, tmp_path / "ms.npy", json.dumps(config))
    ours, theirs = np.load(tmp_path / "ms.npy"), logits_of(tmp_path / "torch.pt")
    # fp32 sums of 40 products in another order
    assert np.abs(ours - theirs).max() <= 1e-5 * np.abs(theirs).max()


def test_a_missing_key_names_the_state_dict(tmp_path: Path, converted: Path) -> None:
    torch.save({"model": {"w": torch.ones(2)}, "step": 7}, tmp_path / "m.pt")
    table = converted / "weights_table.json"
    full = {**SIZES, "tie_weights": True}
    with pytest.raises(UserError, match="give key 'model'"):
        convert_table(tmp_path / "m.pt", tmp_path / "out", table, of_class="model.GPT", arguments={"config": full})
    report = convert_table(
        tmp_path / "m.pt", tmp_path / "out", table, of_class="model.GPT", arguments={"config": full}, key="model"
    )
    assert report.exit_code == 1 and not (tmp_path / "out").exists()
    assert {"W001", "W002"} <= {found.code for found in report.findings}
