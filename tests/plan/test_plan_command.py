"""`msmigrate plan` as a command: text, JSON, exit codes, and run configurations that `train` takes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mappings.errors import UserError
from migrate.cli import main
from migrate.plan.command import default_global_batch, read_model
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
    job = ["--devices", "4", "--memory", "1", "--seq-length", "12", "--global-batch", "8", "--precision", "fp32"]
    arguments = [*job, "--write", str(out), "--data", str(data), "--output", str(tmp_path / "run")]
    assert main(["plan", str(model), *arguments]) == 0
    assert out.read_text().startswith("# msmigrate plan: 14,104 parameters on 4 devices of 1 GiB\n")
    assert main(["train", str(out), "--dry-run"]) == 0, capsys.readouterr().out
    capsys.readouterr()
    assert main(["plan", str(model), "--run", str(out), "--memory", "1", "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert (body["looked_at"], body["job"]["devices"], body["job"]["seq_length"]) == (1, 4, 12)
    tight = write_config(tmp_path / "tight.yaml", model, data, tmp_path / "other", data={"seq_length": 12})
    assert main(["plan", str(model), "--run", str(tight), "--memory", "0.001"]) == 1


def test_bad_input_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "config.json"
    path.write_text("[]")
    with pytest.raises(UserError, match="must be a JSON object"):
        read_model(path)
    path.write_text("{")
    with pytest.raises(UserError, match="not valid JSON"):
        read_model(tmp_path)
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
