"""Configuration: what is refused and how, overrides, and that the saved file is the configuration."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from mappings.errors import UserError
from ms_models.train.config import RunConfig, load

GOOD: dict[str, Any] = {
    "model": {"path": "m"}, "data": {"path": "d"}, "train": {"steps": 10}, "output": {"directory": "o"},
}  # fmt: skip


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(text)
    return path


def good(tmp_path: Path, *overrides: str) -> RunConfig:
    return load(write(tmp_path, yaml.safe_dump(GOOD)), overrides)


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("optimzer.lr=1", "unknown key 'optimzer'; did you mean 'optimizer'"),
        ("train.step=1", "unknown key 'train.step'; did you mean 'steps'"),
        ("layout.ttp=2", "unknown key 'layout.ttp'; did you mean 'tp'"),
        ("zzz=1", "unknown key 'zzz'; known are model, train"),
        ("train.steps=many", "'train.steps' must be a whole number, found str 'many'"),
        ("train.steps=1.5", "'train.steps' must be a whole number, found float 1.5"),
        ("train.steps=true", "'train.steps' must be a whole number, found bool True"),
        ("train.steps=", "'train.steps' must be a whole number, found nothing"),
        ("train.steps=0", "'train.steps' must be at least 1, found 0"),
        ("train.jit=1", "'train.jit' must be true or false, found int 1"),
        ("train.seed=-1", "'train.seed' must be at least 0"),
        ("optimizer.lr=fast", "'optimizer.lr' must be a number"),
        ("optimizer.lr=.inf", "'optimizer.lr' must be finite"),
        ("optimizer.lr=-0.1", "'optimizer.lr' must be at least 0"),
        ("optimizer.betas=[0.9]", "'optimizer.betas' must have 2 elements, found 1"),
        ("optimizer.betas=[0.9, 1.0]", "'optimizer.betas[1]' must be at least 0 and below 1, found 1.0"),
        ("optimizer.betas=[0.9, x]", "'optimizer.betas[1]' must be a number"),
        ("optimizer.eps=0.0", "'optimizer.eps' must be above 0"),
        ("schedule.kind=cosin", "did you mean 'cosine'"),
        ("schedule.warmup_steps=10", "'schedule.warmup_steps' is 10, but the run has 10 steps"),
        ("schedule.min_lr_ratio=1.5", "'schedule.min_lr_ratio' must be at least 0 and at most 1, found 1.5"),
        ("checkpoint.keep=1", "'checkpoint.keep' must be at least 2, found 1"),
        ("layout.tp=two", "'layout.tp' must be a whole number"),
        ("layout.tp=0", "layout: tp must be at least 1"),
        ("layout=2", "layout must be a mapping, found int 2"),
        ("model.path.x=2", "'path' is no section"),
        ("data.text=[stdlib]", "one of 'data.path' (prepared data), 'data.blend'"),
        ("data.text=stdlib", "'data.text' must be a list"),
        ("no-equals", "must have the form section.field=value"),
        (".x=1", "must have the form section.field=value"),
        ("train.steps=[", "not valid YAML"),
    ],
)
def test_bad_values_are_refused_by_name(tmp_path: Path, override: str, expected: str) -> None:
    with pytest.raises(UserError) as caught:
        good(tmp_path, override)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("train: {steps: 1}\n", "'model' is missing"),
        ("- a\n", "must be a mapping of sections"),
        ("a: [\n", "not valid YAML"),
        ("train: {steps: 1}\ntrain: {steps: 2}\n", "key 'train' occurs twice"),
        ("train: {steps: 1, steps: 2}\n", "key 'steps' occurs twice"),
        ("{model: {path: m}, train: {steps: 1}, output: {directory: o}, data: {text: [a]}}", "'data.seq_length'"),
    ],
)  # fmt: skip
def test_bad_files_are_refused(tmp_path: Path, text: str, expected: str) -> None:
    with pytest.raises(UserError) as caught:
        load(write(tmp_path, text))
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        load(tmp_path / "none.yaml")


def test_overrides_reach_every_level_with_yaml_values(tmp_path: Path) -> None:
    config = good(
        tmp_path,
        "train.steps=20",
        "layout.dp=2",
        "optimizer.lr=3e-4",
        "optimizer.betas=[0.8, 0.99]",
        "data.max_bytes=null",
    )
    assert (config.train.steps, config.layout.dp, config.optimizer.lr) == (20, 2, 3e-4)
    assert config.optimizer.betas == (0.8, 0.99)
    assert config.global_batch == 2


def test_empty_sections_mean_defaults(tmp_path: Path) -> None:
    path = write(tmp_path, yaml.safe_dump(GOOD) + "optimizer:\nlayout: {}\n")
    assert load(path).optimizer == good(tmp_path).optimizer


def test_the_saved_configuration_is_the_configuration(tmp_path: Path) -> None:
    config = good(
        tmp_path,
        "layout.tp=2",
        "optimizer.betas=[0.8, 0.99]",
        "data.path=null",
        "data.text=[a, b]",
        "data.seq_length=8",
    )
    saved = tmp_path / "saved.yaml"
    config.save(saved)
    assert load(saved) == config
    assert "# mindspore " in saved.read_text()
    assert load(saved, ["train.steps=11"]) == replace(config, train=replace(config.train, steps=11))


@pytest.mark.parametrize("name", ["one", "tp2", "dp2"])
def test_the_sample_runs_are_the_same_training(name: str) -> None:
    samples = Path(__file__).parents[3] / "samples" / "runs"
    reference, config = load(samples / "one.yaml"), load(samples / f"{name}.yaml")
    assert config.global_batch == reference.global_batch == 8
    assert config.layout.world_size == (1 if name == "one" else 2)
    accumulation = replace(config.train, accumulation=reference.train.accumulation)
    assert replace(config, layout=reference.layout, output=reference.output, train=accumulation) == reference
    assert config.output.directory == f"demo_out/run_{name}"
