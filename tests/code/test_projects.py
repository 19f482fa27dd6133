"""Small PyTorch projects in the styles of real ones: converted, trained by their own loops, compared with PyTorch."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from migrate.code.command import convert
from migrate.code.verify.job import Job
from migrate.code.verify.modules import Outcome, judge
from migrate.report import Report, Severity, Verdict
from migrate.sides.recipes import read_recipes

PROJECTS = Path(__file__).parent / "projects"
NAMES = (
    "amp_ddp_script",
    "bert_classifier",
    "complex_rope",
    "custom_function",
    "dpo",
    "gan",
    "hf_trainer",
    "hf_remote_code",
    "kv_cache",
    "lora",
    "moe",
    "seq2seq",
    "trainer_class",
)
OUT_OPTION = {"amp_ddp_script": "--out-dir", "bert_classifier": "--output_dir", "gan": "--outf"}
STEPS = 10
LOSS_RTOL = 1e-5
# Rewards are differences of nearly equal log probabilities, and some logged figures are means that come out near zero:
# what rounding of terms of size one leaves of them.
LOSS_ATOL = 5e-6
# Adam divides by the root of second moments, so an element whose gradient is nearly zero moves by rounding alone; the
# learning rates are up to 5e-3.
WEIGHT_RTOL, WEIGHT_ATOL = 1e-3, 1e-4
# The bias of the keys shifts every score of a softmax alike: its gradient is nothing but rounding, which an adaptive
# optimizer makes steps of the length of the learning rate of (up to 0.011, ten steps).
KEY_BIAS, KEY_BIAS_ATOL = ("in_proj_bias", "key.bias", "c_attn.bias"), 6e-2


@dataclass
class Both:
    """A project on both sides."""

    name: str
    source: Path
    converted: Path
    report: Report
    work: Path

    def errors(self, side: str) -> dict[str, str]:
        return json.loads((self.work / side / "errors.json").read_text(encoding="utf-8"))

    def losses(self, side: str) -> Any:
        return json.loads((self.work / side / "out" / "losses.json").read_text(encoding="utf-8"))

    def outcomes(self) -> list[Outcome]:
        recipes = read_recipes(self.source / "recipes.yaml")
        return judge(recipes, self.work / "torch" / "modules", self.work / "mindspore" / "modules")


def options(name: str, out: Path, weights: str, path: Path) -> list[str]:
    spelled = f"--{weights.replace('-', '_') if name == 'bert_classifier' else weights}"
    return [OUT_OPTION.get(name, "--out"), str(out), spelled, str(path)]


def run_side(side: str, projects: list[Both]) -> None:
    """All projects in one process: starting a framework takes longer than any of them."""
    jobs = []
    for project in projects:
        work = project.work / side
        (work / "modules").mkdir(parents=True)
        root = project.source if side == "torch" else project.converted
        reference = None if side == "torch" else project.work / "torch" / "modules"
        recipes = read_recipes(project.source / "recipes.yaml")
        Job(recipes, root, work / "modules", reference, STEPS).write(work / "job.json")
        weights = "save-init" if side == "torch" else "init-from"
        arguments = options(project.name, work / "out", weights, project.work / "init.pt")
        jobs.append(
            {
                "root": str(root),
                "job": str(work / "job.json"),
                "arguments": arguments,
                "errors": str(work / "errors.json"),
            }
        )
    path = projects[0].work.parent / f"{side}.json"
    path.write_text(json.dumps(jobs), encoding="utf-8")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, str(Path(__file__).with_name("project_side.py")), side, str(path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.fixture(scope="module")
def projects(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Both]:
    work = tmp_path_factory.mktemp("projects")
    found = []
    for name in NAMES:
        (work / name).mkdir()
        converted = work / name / "converted"
        found.append(Both(name, PROJECTS / name, converted, convert(PROJECTS / name, converted), work / name))
    run_side("torch", found)
    run_side("mindspore", found)
    return {project.name: project for project in found}


def numbers(value: Any, path: str = "") -> dict[str, float]:
    """Every number of a JSON value by its path."""
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = [(str(i), item) for i, item in enumerate(value)]
    else:
        return {path: value}
    return {key: leaf for name, item in items for key, leaf in numbers(item, f"{path}/{name}").items()}


def differences(reference: Any, candidate: Any) -> list[str]:
    want, have = numbers(reference), numbers(candidate)
    assert list(want) == list(have)
    return [
        f"{key}: {have[key]} instead of {want[key]}"
        for key in want
        if not abs(have[key] - want[key]) <= LOSS_RTOL * abs(want[key]) + LOSS_ATOL
    ]


@pytest.mark.parametrize("name", NAMES)
def test_everything_is_converted(name: str, projects: dict[str, Both]) -> None:
    project = projects[name]
    left = [f"{f.code} {f.file}:{f.line} {f.message}" for f in project.report.findings if f.severity != Severity.NOTE]
    assert left == []
    assert project.report.facts["torch_names_unconverted"] == 0
    for path in project.converted.glob("*.py"):
        assert "import torch" not in path.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", NAMES)
def test_modules_are_equal(name: str, projects: dict[str, Both]) -> None:
    """Forward, gradients and descent steps of the modules in `recipes.yaml`, within the bounds of `--modules`."""
    project = projects[name]
    assert "modules" not in project.errors("torch") and "modules" not in project.errors("mindspore")
    outcomes = project.outcomes()
    assert [f"{o.recipe.name}: {o.stage}: {o.message}" for o in outcomes if o.verdict is not Verdict.PASS] == []
    assert {o.stage for o in outcomes} == {"build", "weights", "forward", "gradients", "training"}


@pytest.mark.parametrize("name", NAMES)
def test_own_training_loop_gives_the_same_numbers(name: str, projects: dict[str, Both]) -> None:
    project = projects[name]
    assert project.errors("torch") == {}
    assert project.errors("mindspore").get("train", "") == ""
    reference = project.losses("torch")
    assert len(numbers(reference)) >= STEPS
    assert differences(reference, project.losses("mindspore")) == []


@pytest.mark.parametrize("name", NAMES)
def test_pytorch_reads_the_checkpoints_of_the_converted_project(name: str, projects: dict[str, Both]) -> None:
    project = projects[name]
    saved = [path for path in (project.work / "torch" / "out").iterdir() if path.suffix not in (".json", "")]
    assert saved
    for path in saved:
        want = tensors(torch.load(path, weights_only=False))
        have = tensors(torch.load(project.work / "mindspore" / "out" / path.name, weights_only=False))
        assert list(want) == list(have)
        assert any(value.is_floating_point() for value in want.values())
        for key in want:
            assert want[key].dtype == have[key].dtype and want[key].shape == have[key].shape, key
            atol = KEY_BIAS_ATOL if key.endswith(KEY_BIAS) else WEIGHT_ATOL
            np.testing.assert_allclose(have[key].numpy(), want[key].numpy(), WEIGHT_RTOL, atol, err_msg=key)


def test_transformers_loads_what_the_converted_project_saved(
    projects: dict[str, Both], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A directory with shards, as remote code: `AutoModelForCausalLM` continues a prompt as the converted model did."""
    project = projects["hf_remote_code"]
    saved = project.work / "mindspore" / "out" / "model"
    assert len(list(saved.glob("model-*.safetensors"))) > 1
    for path in (project.source / "tiny").glob("*_tiny.py"):
        shutil.copy(path, saved)
    config = json.loads((saved / "config.json").read_text(encoding="utf-8"))
    config["auto_map"] = {
        "AutoConfig": "configuration_tiny.TinyConfig",
        "AutoModelForCausalLM": "modeling_tiny.TinyForCausalLM",
    }
    (saved / "config.json").write_text(json.dumps(config), encoding="utf-8")
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        saved, trust_remote_code=True, output_loading_info=True
    )
    assert not any(info.values())
    assert model.lm_head.weight is model.model.embed_tokens.weight
    made = project.losses("mindspore")["greedy"]
    prompts = torch.tensor(made)[:, :5]
    again = model.generate(prompts, attention_mask=(prompts != 0).long(), max_new_tokens=12)
    assert again.tolist() == made


def tensors(value: Any, path: str = "") -> dict[str, torch.Tensor]:
    """The tensors of a checkpoint by their path."""
    if isinstance(value, torch.Tensor):
        return {path: value}
    if isinstance(value, dict):
        items = [(str(key), item) for key, item in value.items()]
    elif isinstance(value, list | tuple):
        items = [(str(i), item) for i, item in enumerate(value)]
    else:
        return {}
    return {key: leaf for name, item in items for key, leaf in tensors(item, f"{path}/{name}").items()}


def test_a_changed_number_is_noticed(projects: dict[str, Both]) -> None:
    reference = projects["lora"].losses("torch")
    changed = {**reference, "loss": [*reference["loss"][:-1], reference["loss"][-1] * 1.0001]}
    assert len(differences(reference, changed)) == 1
