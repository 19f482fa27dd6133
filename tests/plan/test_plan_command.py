"""`msmigrate plan` as a command: text, JSON, exit codes, and run configurations that `train` takes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from mappings.errors import UserError
from migrate.cli import main
from migrate.plan.command import default_global_batch, read_model
from migrate.plan.run_config import Rows, batch_for, steps_for
from tests.ms_models.train.run_helpers import LLAMA, write_config, write_data, write_model
from tests.plan.plan_models import SIZES


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(SIZES["13B"]))
    return path


def test_the_text_says_what_and_why(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(config), "--devices", "64", "--memory", "64", "--top", "3"]) == 0
    text = capsys.readouterr().out
    for part in (
        "llama, 13,015,864,320 parameters; 64 devices of 64 GiB (57.6 usable), nodes of 8",
        "assumption: server Atlas 800T A2",
        "tp=8 dp=8 zero=1 sp",
        "GiB per rank: weights",
        "GB sent per rank and step: tp",
        "micro-batches that fit: 1",
        "activations by recompute policy, GiB: none",
        "tp=8 (tensor parallel inside the node): the best layout with less",
        "does not fit into the memory of a device (e.g. dp=64 zero=1",
    ):
        assert part in text, part
    assert len([line for line in text.splitlines() if line[:3] in ("1  ", "2  ", "3  ", "4  ")]) == 3


def test_json_has_every_figure(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["plan", str(config), "--devices", "64", "--json", "--peak-tflops", "300", "--global-batch", "512"]) == 0
    )
    body = json.loads(capsys.readouterr().out)
    first = body["layouts"][0]
    assert body["hardware"]["peak_tflops"] == 300
    assert body["hardware"]["source"].startswith("peak_tflops given")
    memory = first["memory_bytes"]
    passes = memory["copies"] + memory["fresh_gradients"] + memory["activations"]
    always = memory["weights"] + memory["gradients"] + memory["optimizer"] + memory["buffers"]
    assert memory["total"] == always + max(passes, memory["update"])
    assert first["step_s"] == pytest.approx(sum(first["seconds"].values()))
    assert first["tokens_per_s"] == pytest.approx(512 * 4096 / first["step_s"])
    assert first["micro_batch_size"] * first["micro_batches"] * first["layout"]["dp"] == 512
    assert set(first["bytes_sent_per_step"]) == {"tp", "cp", "ep", "pp", "dp"}
    assert sum(body["refused"].values()) > 0


def test_more_bandwidth_in_the_node_makes_tensor_parallel_cheaper(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shares = []
    for speed in ("50", "500"):
        main(["plan", str(config), "--devices", "64", "--json", "--top", "99", "--node-gbytes", speed])
        layouts = json.loads(capsys.readouterr().out)["layouts"]
        shares += [one["seconds"]["tp"] for one in layouts if one["layout"]["tp"] == 8 and one["layout"]["pp"] == 1]
    assert shares == [pytest.approx(10 * shares[1]), shares[1]]


def test_what_fits_nowhere_ends_with_1(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(config), "--devices", "1", "--memory", "24"]) == 1
    assert "nothing fits; the least any layout needs is" in capsys.readouterr().out
    assert main(["plan", str(config), "--devices", "1", "--memory", "24", "--write", str(config.parent / "x")]) == 2
    assert "not written, because no layout fits" in capsys.readouterr().err


def test_a_written_plan_passes_a_dry_run_and_is_judged_as_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, data, out = write_model(tmp_path / "model"), write_data(tmp_path / "data"), tmp_path / "run.yaml"
    job = ["--devices", "4", "--memory", "1", "--precision", "fp32"]
    arguments = [*job, "--write", str(out), "--data", str(data), "--output", str(tmp_path / "run")]
    assert main(["plan", str(model), *arguments]) == 0
    assert out.read_text().startswith("# msmigrate plan: 14,104 parameters on 4 devices of 1 GiB\n")
    capsys.readouterr()
    assert main(["train", str(out), "--dry-run"]) == 0, capsys.readouterr().out
    said = capsys.readouterr().out
    assert not [code for code in ("R103", "R104", "R105", "R106") if code in said], said
    # Idle stages are in the estimate; where it still prefers them, the file says what the dry run will.
    assert ("a dry run warns of it (R101)" in out.read_text()) == ("R101" in said)
    assert main(["plan", str(model), "--run", str(out), "--memory", "1", "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert (body["looked_at"], body["job"]["devices"], body["job"]["seq_length"]) == (1, 4, 12)
    tight = write_config(tmp_path / "tight.yaml", model, data, tmp_path / "other", data={"seq_length": 12})
    assert main(["plan", str(model), "--run", str(tight), "--memory", "0.001"]) == 1


def test_a_written_plan_keeps_to_the_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, data, out = write_model(tmp_path / "model"), write_data(tmp_path / "data"), tmp_path / "run.yaml"
    common = ["plan", str(model), "--devices", "2", "--memory", "1", "--write", str(out), "--data", str(data)]
    assert main([*common, "--seq-length", "16"]) == 2
    assert f"--seq-length is 16, but {data} holds sequences of 12" in capsys.readouterr().err
    assert main([*common, "--global-batch", "4096"]) == 2
    assert "sequences, which do not fill a global batch of 4096; lower --global-batch" in capsys.readouterr().err
    assert main([*common[:-1], str(tmp_path / "later"), "--seq-length", "16", "--global-batch", "8"]) == 0
    text = out.read_text()
    assert "later is not there yet: prepare it with sequences of 16 tokens" in text
    written = yaml.safe_load(text)
    assert (written["train"]["steps"], written["train"]["eval_every"]) == (1000, 500)
    assert (written["schedule"], written["checkpoint"]) == ({"warmup_steps": 20}, {"every": 100})


def test_what_is_left_out_follows_from_the_data() -> None:
    assert batch_for(Rows(128, 100_000, 9), usual=512, devices=8) == 512
    assert batch_for(Rows(128, 4_300, 9), usual=8192, devices=4) == 32
    assert batch_for(Rows(128, 50, 9), usual=8192, devices=4) == 4
    assert steps_for(Rows(128, 4_300, 9), 40) == 430
    assert steps_for(None, 40) == 1000


def test_a_run_is_judged_with_the_length_of_its_data_and_its_precision(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, data = write_model(tmp_path / "model"), write_data(tmp_path / "data")
    run = write_config(tmp_path / "run.yaml", model, data, tmp_path / "out", precision={"compute": "fp32"})
    assert "seq_length" not in yaml.safe_load(run.read_text())["data"]
    assert main(["plan", str(model), "--run", str(run)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "sequences of 12 tokens, fp32 (taken as 1/2 of the 16-bit 313 TFLOP/s); ascend-910b: 156.5 TFLOP/s" in said


def test_a_pipeline_with_few_micro_batches_is_told_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = write_model(tmp_path / "model")
    run = write_config(
        tmp_path / "run.yaml", model, write_data(tmp_path / "data"), tmp_path / "out", layout={"pp": 2},
        train={"accumulation": 4},
    )  # fmt: skip
    assert main(["plan", str(model), "--run", str(run)]) == 0
    assert "a dry run warns of it: R101" in capsys.readouterr().out


def test_bad_input_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "config.json"
    path.write_text("[]")
    with pytest.raises(UserError, match="must be a JSON object"):
        read_model(path)
    path.write_text("{")
    with pytest.raises(UserError, match="not valid JSON"):
        read_model(tmp_path)
    assert main(["plan", str(tmp_path / "none"), "--devices", "8"]) == 2
    assert f"{tmp_path / 'none'}: no model directory (config.json) there" in capsys.readouterr().err
    path.write_text(json.dumps(LLAMA))
    for arguments, message in (
        (["--devices", "8", "--recompute", "some"], "recompute must be one of"),
        (["--devices", "8", "--engine", "torch"], "unknown engine 'torch'"),
        (["--devices", "8", "--hardware", "tpu"], "unknown hardware 'tpu'"),
        ([], "--devices is missing"),
    ):
        assert main(["plan", str(path), *arguments]) == 2
        assert message in capsys.readouterr().err


def test_the_default_batch_divides_over_nodes() -> None:
    assert default_global_batch(64, 8, 4096) == 1024
    assert default_global_batch(10_000, 8, 4096) == 1250
    assert default_global_batch(6, 8, 4096) == 1026
