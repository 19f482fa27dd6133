"""The dry run: every problem at once, a verdict for programs, the load path by names and shapes, advice by code."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from mappings.errors import UserError
from mappings.layout import ParallelLayout
from migrate.cli import main
from migrate.weights.command import convert
from ms_models.data.records import TRAIN, VALIDATION, PreparedData, Split
from ms_models.train.config import config_lines, git_state, load
from ms_models.train.launch.checks.advice import warnings_of
from ms_models.train.launch.checks.devices import check_devices, check_versions
from ms_models.train.launch.checks.model import read_model
from ms_models.train.launch.dry_run import Verdict, judge
from ms_models.train.launch.place import NodePlace
from tests.ms_models.train.encoder_helpers import write_encoder, write_rows, write_run
from tests.ms_models.train.run_helpers import write_config, write_data, write_model


class Run:
    """A configuration and what it names."""

    def __init__(self, root: Path, made: Path) -> None:
        self.model, self.data, self.output = root / "model", made / "data", root / "out"
        shutil.copytree(made / "model", self.model)
        self.config = write_config(root / "run.yaml", self.model, self.data, self.output)

    def judge(self, *overrides: str) -> Verdict:
        return judge(load(self.config, overrides))

    def failures(self, *overrides: str) -> dict[str, str]:
        return {check.name: check.message for check in self.judge(*overrides).checks if check.verdict == "fail"}

    def rewrite(self, change: Any) -> None:
        """Changes the tensors of the model."""
        path = self.model / "model.safetensors"
        tensors = load_file(path)
        change(tensors)
        save_file(tensors, path, {"format": "pt"})


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("made")
    write_model(root / "model")
    write_data(root / "data")
    write_encoder(root / "bert")
    write_rows(root / "rows")
    return root


@pytest.fixture
def run(tmp_path: Path, made: Path) -> Run:
    return Run(tmp_path, made)


def test_a_run_that_can_start_passes_and_nothing_is_written(run: Run) -> None:
    before = sorted(run.config.parent.rglob("*"))
    verdict = run.judge()
    assert (verdict.verdict, verdict.exit_code) == ("pass", 0)
    assert {check.name for check in verdict.checks} >= {
        "versions", "interpreter", "devices", "output directory", "model", "task", "layout", "axes", "pipeline",
        "optimizer sharding", "weights", "metrics",
        "disk",
        "sequence length", "shared sequences", "vocabulary", "tokenizer", "amount of data", "validation data",
    }  # fmt: skip
    assert not any(check.verdict in ("fail", "warning") for check in verdict.checks)
    assert sorted(run.config.parent.rglob("*")) == before


def test_every_problem_is_listed_at_once(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run.rewrite(lambda tensors: tensors.pop("model.norm.weight"))
    (run.model / "tokenizer.json").write_text("{}")
    run.output.mkdir()
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("usage", (), {"free": 1000})())
    found = run.failures("layout.tp=4", "layout.zero=3", "layout.pp=2", "train.accumulation=1",
                         "train.micro_batch_size=40", "data.seq_length=16")  # fmt: skip
    assert set(found) == {
        "layout", "pipeline", "optimizer sharding", "weights", "disk", "sequence length", "tokenizer", "amount of data",
    }  # fmt: skip
    assert "tp=4 does not divide" in found["layout"]
    assert found["weights"].endswith("missing: model.norm.weight")
    assert all("\n" not in message for message in found.values())
    assert run.judge("layout.tp=4").exit_code == 1


def test_an_unreadable_model_skips_what_depends_on_it(run: Run) -> None:
    verdict = run.judge("model.path=/none")
    outcomes = {check.name: check.verdict for check in verdict.checks}
    assert outcomes["model"] == "fail"
    assert {outcomes[name] for name in ("layout", "weights", "disk", "data")} == {"skipped"}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda t: t.pop("model.layers.1.mlp.up_proj.weight"), "missing: model.layers.1.mlp.up_proj.weight"),
        (lambda t: t.update(extra=np.zeros(1, np.float32)), "unexpected: extra"),
        (
            lambda t: t.update({"model.norm.weight": np.zeros(25, np.float32)}),
            "wrong shape: model.norm.weight [25] instead of [24]",
        ),
        (lambda t: t.update({"model.norm.weight": np.zeros(24, np.int64)}), "none of F32, F16, BF16: model.norm"),
    ],
)
def test_the_load_path_is_complete_by_names_and_shapes(change: Any, expected: str, run: Run) -> None:
    run.rewrite(change)
    assert expected in run.failures()["weights"]


def test_sharded_weights_are_checked_rank_by_rank(run: Run, tmp_path: Path) -> None:
    sharded = tmp_path / "sharded"
    assert convert(run.model, sharded, layout=ParallelLayout(tp=2)).exit_code == 0
    settings = (f"model.path={sharded}", "layout.tp=2")
    assert run.failures(*settings) == {}
    assert "sharded for tp=2, the run has tp=1" in run.failures(f"model.path={sharded}")["weights"]
    path = sharded / "model-rank00001.safetensors"
    path.write_bytes(path.read_bytes()[:-4])
    assert "bytes, the manifest says" in run.failures(*settings)["weights"]
    path.unlink()
    assert "missing" in run.failures(*settings)["weights"]


def test_an_encoder_without_head_may_start_and_one_with_half_a_head_may_not(tmp_path: Path, made: Path) -> None:
    model = write_encoder(tmp_path / "model", architectures=["BertModel"])
    path = model / "model.safetensors"
    whole = load_file(made / "bert" / "model.safetensors")
    body = {name.removeprefix("bert."): value for name, value in whole.items() if name.startswith("bert.")}
    save_file(body, path, {"format": "pt"})
    config = load(write_run(tmp_path / "run.yaml", model, made / "rows", tmp_path / "run"))
    checks = {check.name: check for check in judge(config).checks}
    assert checks["weights"].verdict == "pass", checks["weights"].message
    assert "a new head of 5 tensors" in checks["weights"].message
    half = {name: value for name, value in whole.items() if name != "cls.predictions.bias"}
    save_file(half, path, {"format": "pt"})
    checks = {check.name: check for check in judge(config).checks}
    assert checks["weights"].verdict == "fail"


def advice(config_path: Path, *overrides: str, data: PreparedData | None = None) -> set[str]:
    config = load(config_path, overrides)
    found = list(warnings_of(config, read_model(config), data))
    assert all(text and "\n" not in text for _, text in found)
    return {code for code, _ in found}


LONG = ("train.steps=1000", "schedule.warmup_steps=20", "train.eval_every=500", "checkpoint.every=100")


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ((), set()),
        (("layout.pp=2", "train.accumulation=7"), {"R101"}),
        (("layout.pp=2", "train.accumulation=8"), set()),
        (("schedule.warmup_steps=0",), {"R103"}),
        (("schedule.warmup_steps=60",), {"R103"}),
        (("schedule.warmup_steps=0", "schedule.kind=constant"), set()),
        (("train.eval_every=0",), {"R104"}),
        (("train.steps=5000", "schedule.warmup_steps=100", "train.eval_every=2000"), {"R104"}),
        (("checkpoint.every=0",), {"R105"}),
        (("optimizer.clip_norm=0",), {"R107"}),
        (("train.jit=false",), {"R108"}),
        (("train.threads=100000",), {"R110"}),
        (("train.steps=50", "train.eval_every=0", "checkpoint.every=0", "schedule.warmup_steps=0"), set()),
    ],
)
def test_advice_is_given_by_code(overrides: tuple[str, ...], expected: set[str], run: Run) -> None:
    assert advice(run.config, *LONG, *overrides) == expected


def test_bf16_needs_an_npu(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for there, expected in ((False, {"R113"}), (True, set())):
        monkeypatch.setattr("ms_models.train.launch.checks.advice.has_npu", lambda there=there: there)
        assert advice(run.config, *LONG, "precision.compute=bf16") == expected


def test_advice_about_data_and_large_models(run: Run, tmp_path: Path, made: Path) -> None:
    data = PreparedData.read(run.data)
    assert advice(run.config, *LONG, data=data) == {"R106"}
    many = {TRAIN: Split(10**6, 10**9, {}), VALIDATION: Split(10, 10**4, {})}
    assert advice(run.config, *LONG, data=replace(data, splits=many)) == {"R112"}
    many[VALIDATION] = Split(10, 2 * 10**7, {})
    assert advice(run.config, *LONG, data=replace(data, splits=many)) == set()
    body = json.loads((run.model / "config.json").read_text())
    body |= {"hidden_size": 4096, "intermediate_size": 16384, "num_hidden_layers": 32, "head_dim": 1024}
    (run.model / "config.json").write_text(json.dumps(body))
    assert advice(run.config, *LONG, "layout.dp=2") == {"R109"}
    assert advice(run.config, *LONG, "layout.dp=2", "layout.zero=1") == set()
    encoder = write_run(tmp_path / "encoder.yaml", made / "bert", made / "rows", tmp_path / "out2")
    rows = PreparedData.read(made / "rows")
    assert advice(encoder, "train.jit=true", data=rows) == set()
    assert advice(encoder, "train.jit=true", data=replace(rows, packing="concatenate")) == {"R111"}


def command(run: Run, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code = main(["train", str(run.config), "--dry-run", "--json", *arguments])
    return code, json.loads(capsys.readouterr().out)


def test_the_verdict_for_programs(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    code, body = command(run, capsys)
    assert (code, body["verdict"]) == (0, "pass")
    assert set(body) == {"verdict", "checks", "config", "versions"}
    assert all(set(check) == {"name", "verdict", "message", "code"} for check in body["checks"])
    assert body["config"]["train"]["steps"] == 6
    assert body["versions"]["mindspore"].startswith("2.10.")
    code, body = command(run, capsys, "--set", "layout.tp=4")
    assert (code, body["verdict"]) == (1, "fail")
    code, body = command(run, capsys, "--set", "layuot.tp=4")
    assert (code, body["verdict"], body["config"]) == (2, "could_not_run", None)
    assert "did you mean 'layout'" in body["checks"][0]["message"]
    faults = ("trian.steps=1", "train.stpes=2", "train.steps=many", "model.task=x")
    code, body = command(run, capsys, *(part for fault in faults for part in ("--set", fault)))
    assert (code, len(body["checks"])) == (2, 1)
    for part in (
        "'trian'",
        "'train.stpes'; did you mean 'steps'",
        "'train.steps' must be a whole",
        "'model.task' must",
    ):
        assert part in body["checks"][0]["message"]
    code, body = command(run, capsys, "--set", "train.log_every=0", "--set", "optimizer.eps=0")
    message = body["checks"][0]["message"]
    assert code == 2 and "'train.log_every' must be at least 1" in message and "'optimizer.eps' must" in message
    assert message.count("config: ") == 1
    assert main(["train", str(run.config), "--json"]) == 2
    assert "belong to --dry-run" in capsys.readouterr().err


def test_memory_is_compared_with_a_stated_device(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    for size, expected in (("16", "pass"), ("0.001", "fail")):
        code, body = command(run, capsys, "--device-memory", size)
        (check,) = [check for check in body["checks"] if check["name"] == "memory"]
        assert (check["verdict"], code) == (expected, 0 if expected == "pass" else 1), check
        assert "GiB estimated for the fullest rank" in check["message"]


def test_the_terminal_shows_configuration_checks_and_verdict(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", str(run.config), "--dry-run", "--set", "optimizer.clip_norm=0"]) == 0
    out = capsys.readouterr().out
    for part in (
        "train: steps=6 micro_batch_size=2 accumulation=4",
        "layout: tp=1",
        "ok      weights: 29 tensors",
        "R107    advice: optimizer.clip_norm is 0",
        "every check passed, 1 warning; nothing was started",
    ):
        assert part in out, out
    assert len(list(config_lines(load(run.config)))) == len(load(run.config).to_dict())


def test_the_saved_configuration_says_the_commit_and_reads_back(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    assert git_state(tree) == {}
    who = ["-c", "user.name=n", "-c", "user.email=e@example.org"]
    for arguments in (["init", "-q"], [*who, "commit", "-q", "--allow-empty", "-m", "one"]):
        subprocess.run(["git", "-C", str(tree), *arguments], check=True)
    state = git_state(tree)
    assert len(state["git_commit"]) == 40
    assert state["git_changes"] == "none"
    (tree / "file").write_text("new")
    subprocess.run(["git", "-C", str(tree), "add", "file"], check=True)
    assert git_state(tree)["git_changes"] == "1 changed files"
    monkeypatch.chdir(tree)
    config = load(run.config)
    config.save(tmp_path / "saved.yaml")
    assert f"# git_commit {state['git_commit']}\n" in (tmp_path / "saved.yaml").read_text()
    assert load(tmp_path / "saved.yaml") == config


def test_versions_and_devices_are_checked(tmp_path: Path) -> None:
    right = {"python": "3.11.7", "mindspore": "2.10.0", "numpy": "1.26.4"}
    assert "mindspore 2.10.0" in check_versions(right)
    with pytest.raises(UserError, match=r"numpy is 2\.1\.0"):
        check_versions({**right, "numpy": "2.1.0"})
    with pytest.raises(UserError, match=r"mindspore is 2\.9\.0"):
        check_versions({**right, "mindspore": "2.9.0"})
    two, variable = NodePlace(0, 1, 2), "ASCEND_RT_VISIBLE_DEVICES"
    assert check_devices(two, {}, tmp_path) == "no NPU: 2 ranks share the processor"
    assert "2 visible" in check_devices(two, {variable: "0,3"}, tmp_path)
    with pytest.raises(UserError, match="shows 1 devices to the 2 ranks"):
        check_devices(two, {variable: "0"}, tmp_path)
    (tmp_path / "davinci0").touch()
    (tmp_path / "davinci_manager").touch()
    with pytest.raises(UserError, match=r"1 NPUs .* for the 2 ranks"):
        check_devices(two, {}, tmp_path)
