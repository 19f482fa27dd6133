"""Exports of runs: transformers loads them whatever the layout was; the configuration for MindSpore Transformers is one
that it would read; and back."""

from __future__ import annotations

import shutil
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest
import torch
import transformers
import yaml

from mappings.errors import UserError
from mappings.families import family_for_config
from mappings.formats.hf_directory import read_config
from mappings.layout import ParallelLayout
from migrate.cli import main
from migrate.export.command import MINDSPORE_TRANSFORMERS, export
from migrate.export.keys import keys, unknown_keys
from migrate.export.run_yaml import NAME, RUN, RunYaml
from migrate.report import Report
from migrate.weights.command import diff
from ms_models.train.config import RunConfig
from tests.export.trained import QWEN3, QWEN3_MOE, SEQ_LENGTH, STEPS, in_layout, train, write_model
from tests.ms_models.train.run_helpers import read_tensors


@pytest.fixture(scope="module")
def qwen3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("qwen3"), QWEN3)


@pytest.fixture(scope="module")
def qwen3_moe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("qwen3_moe"), QWEN3_MOE)


LAYOUTS: dict[str, tuple[str, ParallelLayout]] = {
    "one": ("qwen3", ParallelLayout()),
    "tp2": ("qwen3", ParallelLayout(tp=2)),
    "pp2 vpp2": ("qwen3", ParallelLayout(pp=2, vpp=2)),
    "dp2 zero1": ("qwen3", ParallelLayout(dp=2, zero=1)),
    "dp2 zero3": ("qwen3", ParallelLayout(dp=2, zero=3)),
    "dp2 tp2 pp2": ("qwen3", ParallelLayout(dp=2, tp=2, pp=2, zero=2)),
    "experts": ("qwen3_moe", ParallelLayout()),
    "ep2": ("qwen3_moe", ParallelLayout(dp=2, ep=2)),
    "ep2 pp2 zero1": ("qwen3_moe", ParallelLayout(dp=4, ep=2, pp=2, zero=1)),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_transformers_loads_a_run_of_any_layout(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    model, layout = LAYOUTS[name]
    run = request.getfixturevalue(model)
    source = run if layout == ParallelLayout() else in_layout(run, tmp_path / "run", layout)
    report = export(source, tmp_path / "hf", target="hf")
    assert report.exit_code == 0, report.findings
    loaded, info = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "hf", output_loading_info=True, dtype=torch.float32
    )
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"]
    trained = read_tensors(run / f"step_{STEPS:08d}" / "model-rank00000.safetensors")
    start = read_tensors(run.parent / "model" / "model.safetensors")
    found = read_tensors(tmp_path / "hf" / "model.safetensors")
    assert found.keys() == start.keys()
    moved = [key for key in found if not np.array_equal(found[key], start[key])]
    assert len(moved) > len(found) / 2, "the run trained nothing"
    state = loaded.state_dict()
    for key, value in found.items():
        if key in trained:
            assert np.array_equal(value, trained[key]), key
        if key in state:  # experts are stacked in transformers 5
            assert np.array_equal(state[key].numpy(), value), key


@pytest.mark.parametrize("optimizer", [False, True])
def test_mindspore_transformers_gets_weights_and_a_configuration(qwen3: Path, optimizer: bool, tmp_path: Path) -> None:
    run = in_layout(qwen3, tmp_path / "run", ParallelLayout(tp=2, pp=2))
    out = tmp_path / "out"
    assert export(run, out, target=MINDSPORE_TRANSFORMERS, optimizer=optimizer).exit_code == 0
    folder = out / "checkpoint" / f"iteration_{STEPS:08d}"
    assert (out / "checkpoint" / "latest_checkpointed_iteration.txt").read_text() == str(STEPS)
    assert bool(list(folder.glob("opt-*.safetensors"))) == optimizer
    body = yaml.safe_load((out / NAME).read_text())
    assert unknown_keys(body, read_config(out / "checkpoint")) == []
    assert body["checkpoint"]["load_path"] == str(out / "checkpoint")
    assert body["checkpoint"]["no_load_optim"] is not optimizer
    assert body["training"] == {
        "steps": STEPS, "local_batch_size": 2, "global_batch_size": 2, "max_norm": 0.5, "seed": 5,
    }  # fmt: skip
    assert body["lr_scheduler"] == {
        "type": "WarmUpStableDecayLR", "learning_rate": 0.01, "warmup_steps": 1, "total_steps": STEPS,
        "lr_end": 0.001, "decay_start_steps": 2,
    }  # fmt: skip
    assert body["model"]["seq_length"] == SEQ_LENGTH
    assert body["model"]["qk_layernorm"] is True
    assert (body["model"]["vocab_size"], body["model"]["architectures"]) == (53, "Qwen3ForCausalLM")
    assert "REPLACE_" in (out / NAME).read_text()
    # And back: not a bit is lost.
    assert diff(out / "checkpoint", qwen3 / f"step_{STEPS:08d}").exit_code == 0
    assert export(out / "checkpoint", tmp_path / "hf", target="hf").exit_code == 0
    trained = read_tensors(qwen3 / f"step_{STEPS:08d}" / "model-rank00000.safetensors")
    found = read_tensors(tmp_path / "hf" / "model.safetensors")
    assert all(np.array_equal(found[key], trained[key]) for key in trained)


def body_of(raw: dict[str, Any], config: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    made = RunYaml(family_for_config(raw), raw, config, seq_length=16, checkpoint=Path("there"), has_states=False)
    return made.body(), made.notes


def test_layout_and_schedules_are_said_in_its_words() -> None:
    run = {
        "layout": {"tp": 4, "pp": 2, "vpp": 2, "cp": 2, "dp": 8, "ep": 4, "zero": 1},
        "parallel": {"context": "ulysses", "schedule": "zero_bubble"},
        "train": {"steps": 500, "micro_batch_size": 2, "accumulation": 8, "seed": 1},
    }
    body, notes = body_of({**QWEN3, "rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}}, run)
    parallel = body["parallelism"]
    assert (parallel["tensor_parallel"], parallel["sequence_parallel"]) == (4, True)
    assert (parallel["pipeline_parallel"], parallel["pipeline_parallel_interleave_num"]) == (2, 2)
    assert (parallel["context_parallel"], parallel["context_parallel_method"]) == (2, "ulysses")
    assert parallel["pipeline_parallel_schedule"] == "interleaved_1f1b"
    assert body["training"]["global_batch_size"] == 2 * 8 * 8
    assert (body["model"]["rope_theta"], "rope_parameters" in body["model"]) == (5e5, False)
    assert notes == ["parallel.schedule 'zero_bubble' has no counterpart; 1f1b is written"]
    for kind, expected in {
        "constant": "ConstantWarmUpLR", "linear": "PolynomialWithWarmUpLR", "cosine": "CosineWithWarmUpLR",
    }.items():  # fmt: skip
        body, _ = body_of(QWEN3, {"schedule": {"kind": kind}})
        assert body["lr_scheduler"]["type"] == expected
        assert unknown_keys(body, QWEN3) == []
    assert {"ConstantWarmUpLR", "PolynomialWithWarmUpLR", "CosineWithWarmUpLR", "WarmUpStableDecayLR"} == set(
        keys()["schedulers"]
    )


def test_what_has_no_counterpart_is_said() -> None:
    _, notes = body_of(QWEN3_MOE, {})
    assert notes == ["model_type 'qwen3_moe' has no PyNative training model there; known are qwen3, deepseek_v3"]
    _, notes = body_of({**QWEN3, "rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, {})
    assert notes == ["rope_type 'llama3' has no counterpart; plain rotary positions are written"]
    scaled, notes = body_of({**QWEN3, "rope_scaling": {"type": "yarn", "factor": 4.0, "beta_fast": 32}}, {})
    assert notes == []
    assert (scaled["model"]["position_embedding_type"], scaled["model"]["scaling_factor"]) == ("yarn", 4.0)
    assert unknown_keys(scaled, QWEN3) == []


def test_an_unknown_key_is_found() -> None:
    body, _ = body_of(QWEN3, {})
    body["training"]["lokal_batch_size"] = 1
    body["model"]["hidden_sise"] = 1
    body["train_dataset"]["dataloader"]["path"] = 1
    body["trainig"] = {}
    found = {"trainig", "training.lokal_batch_size", "model.hidden_sise", "train_dataset.dataloader.path"}
    assert set(unknown_keys(body, QWEN3)) == found


def test_the_defaults_without_a_run_are_fields_of_a_run() -> None:
    sections = get_type_hints(RunConfig)
    for section, values in RUN.items():
        assert set(values) <= {field.name for field in fields(sections[section])}, section
    body, notes = body_of(QWEN3, {})
    assert notes == []
    assert body["training"]["steps"] == 1000


def test_bad_requests_are_one_line(qwen3: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = write_model(tmp_path / "model", QWEN3)
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "LATEST").write_text("step_00000009\n")
    converted = shutil.copytree(qwen3, tmp_path / "converted")
    (converted / f"step_{STEPS:08d}" / "adapter.json").write_text("{}")
    for arguments, expected in (
        ([str(converted)], "is of a run of converted code"),
        ([str(qwen3), "--for", "mindformers"], "known are hf, mindspore-transformers"),
        ([str(qwen3), "--optimizer"], "--optimizer is for mindspore-transformers"),
        ([str(model), "--for", "mindspore-transformers", "--optimizer"], "so there are no optimizer states"),
        ([str(broken)], "names 'step_00000009', which is no complete checkpoint; complete ones: none"),
    ):
        assert main(["export", *arguments, "-o", str(tmp_path / "out")]) == 2
        error = capsys.readouterr().err
        assert expected in error and error.count("\n") == 1, error
        assert not (tmp_path / "out").exists()


def test_an_existing_configuration_is_not_overwritten(qwen3: Path, tmp_path: Path) -> None:
    def run(**options: Any) -> Report:
        return export(qwen3, tmp_path / "out", target=MINDSPORE_TRANSFORMERS, **options)

    assert run().exit_code == 0
    with pytest.raises(UserError, match="exists; choose another directory"):
        run()
    assert run(force=True).exit_code == 0
