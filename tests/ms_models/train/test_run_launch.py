"""What `launch` refuses before it starts anything, the dry run, and the loop's policies in this process."""

from __future__ import annotations

import json
import shutil
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mappings.errors import UserError
from ms_models.data import records
from ms_models.train import loop
from ms_models.train.checkpoints.run_directory import LOGS, complete_checkpoints
from ms_models.train.config import load
from ms_models.train.errors import RunError
from ms_models.train.launch import processes
from ms_models.train.launch.starting import launch
from ms_models.train.services.metrics_file import MEASURED, MetricsFile, read_metrics
from tests.ms_models.train.run_helpers import WORDS, write_config, write_data, write_model, write_tokenizer


class Run:
    """A configuration whose launch must not start a process."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.model, self.data, self.output = root / "model", root / "data", root / "out"
        write_model(self.model)
        write_data(self.data)
        self.config = write_config(root / "run.yaml", self.model, self.data, self.output)
        self.lines: list[str] = []

    def launch(self, *overrides: str, **options: Any) -> int:
        return launch(self.config, overrides, echo=self.lines.append, **options)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(processes.subprocess, "Popen", refuse)
    return Run(tmp_path)


def edit_config(field: str, value: Any) -> Callable[[Run], None]:
    def change(run: Run) -> None:
        path = run.model / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), field: value}))

    return change


def edit_data(section: str, **values: Any) -> Callable[[Run], None]:
    def change(run: Run) -> None:
        path = run.data / records.NAME
        body = json.loads(path.read_text())
        body[section] |= values
        path.write_text(json.dumps(body))

    return change


def other_tokenizer(run: Run) -> None:
    (run.model / "tokenizer.json").write_text("{}")


REFUSED: list[tuple[list[str], Callable[[Run], None] | None, str]] = [
    (["layout.tp=4"], None, "tp=4 does not divide the 38 rows of model.layers.0.mlp.gate_proj.weight; tp=2 would"),
    (["layout.pp=3"], None, "pp=3 x vpp=1 stages, but the model has 2 layers"),
    (["layout.pp=2", "train.accumulation=1"], None, "1 micro-batches are fewer than the pp=2 stages"),
    (["layout.pp=2", "parallel.schedule=interleaved"], None, "interleaved needs vpp of at least 2"),
    (["layout.cp=4"], None, "cp=4 needs a sequence length that 8 divides, found 12; 16 would fit"),
    (["layout.cp=3", "parallel.context=ulysses"], None, "heads per tensor-parallel rank that cp=3 divides, found 4"),
    (["parallel.sequence_parallel=true"], None, "divides sequences over tp, which is 1"),
    (["layout.dp=2", "layout.ep=2"], None, "llama family has no experts"),
    (["layout.dp=2", "layout.zero=3"], None, "zero=3 changes the size of parameters, which needs train.jit: false"),
    (["layout.zero=3", "train.jit=false", "parallel.recompute=block"], None, "each layer is computed again anyway"),
    (["parallel.recompute=some"], None, "recompute must be one of none, attention, block, full, found 'some'"),
    (["model.path=/none"], None, "/none: no such directory"),
    ([], edit_config("model_type", "lama"), "model_type 'lama' is not supported; the nearest known is 'llama'"),
    ([], lambda run: (run.model / "model.safetensors").unlink(), "neither model.safetensors nor"),
    ([], edit_config("max_position_embeddings", 8), "sequences of 12 tokens exceed the model's max_position"),
    (["data.seq_length=16"], None, "data.seq_length is 16, but"),
    ([], edit_data("tokenizer", largest_id=53), "holds token id 53, the model's vocabulary has 53"),
    ([], other_tokenizer, "was tokenized with another tokenizer.json"),
    (["train.micro_batch_size=10"], None, "37 sequences do not fill a global batch of 40"),
    (["data.path=/none"], None, "so this is no prepared data"),
    (["data.path=null", "data.text=[stdlib]", "data.seq_length=33"], None, "max_position_embeddings of 32"),
    (["data.path=null", "data.text=[stdlib]", "data.seq_length=8"], None, "no tokenizer.json"),
    (["output.directory={model}/config.json/out"], None, "cannot be written"),
    (["checkpoint.resume=true"], None, "no LATEST file"),
    (["optimizr.lr=1"], None, "did you mean 'optimizer'"),
]  # fmt: skip


@pytest.mark.parametrize(("overrides", "change", "expected"), REFUSED)
def test_what_cannot_run_is_refused_before_anything_is_written(
    run: Run, overrides: list[str], change: Callable[[Run], None] | None, expected: str
) -> None:
    if change is not None:
        change(run)
    with pytest.raises(UserError) as caught:
        run.launch(*(override.format(model=run.model) for override in overrides))
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not run.output.exists()


def test_evaluation_needs_a_validation_split(run: Run) -> None:
    shutil.rmtree(run.data)
    write_data(run.data, validation=0)
    with pytest.raises(UserError, match="there is no validation split"):
        run.launch()


@pytest.mark.parametrize("step", [0, 7])
def test_stop_after_must_be_a_step_of_the_run(run: Run, step: int) -> None:
    with pytest.raises(UserError, match="the run has steps 1 to 6"):
        run.launch(stop_after=step)


def test_a_full_disk_is_refused(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**9, 10**9, 10**5))
    with pytest.raises(UserError, match="are needed for checkpoints"):
        run.launch()


def test_a_dry_run_says_what_would_run_and_writes_nothing(run: Run) -> None:
    assert run.launch(dry_run=True) == 0
    assert not run.output.exists()
    text = "\n".join(run.lines)
    for part in (
        "layout: one process",
        "global batch 8",
        "37 sequences of 12; the run reads 1.30 epochs",
        "every check passed",
    ):
        assert part in text


def test_text_is_prepared_once_and_again_when_its_settings_change(run: Run) -> None:
    write_tokenizer(run.model)
    text = run.root / "text"
    text.mkdir()
    for number in range(40):
        (text / f"{number}.txt").write_text(" ".join(f"w{(number * i) % WORDS}" for i in range(30)))
    settings = ["data.path=null", f"data.text=[{text}]", "data.seq_length=12", "data.validation_fraction=0.2"]
    settings += ["data.processes=1"]
    with pytest.raises(AssertionError, match="a process was started"):
        run.launch(*settings)
    description = run.output / "data" / "data.json"
    first = description.stat().st_mtime_ns
    with pytest.raises(AssertionError, match="a process was started"):
        run.launch(*settings)
    assert description.stat().st_mtime_ns == first
    assert run.launch(*settings, "data.seed=1", dry_run=True) == 0
    assert description.stat().st_mtime_ns == first, "a dry run writes nothing"
    with pytest.raises(UserError, match="prepared with other settings"):
        run.launch(*settings, "data.seed=1", resume=True)
    with pytest.raises(AssertionError, match="a process was started"):
        run.launch(*settings, "data.seed=1")
    assert json.loads(description.read_text())["request"]["seed"] == 1


def train(run: Run, *overrides: str, resume: Path | None = None, stop_after: int | None = None) -> None:
    """The loop of one process, in this one."""
    (run.output / LOGS).mkdir(parents=True, exist_ok=True)
    (run.output / LOGS / "rank_00000.json").touch()
    loop.run(
        load(run.config, ["train.jit=false", "train.accumulation=1", *overrides]), resume=resume, stop_after=stop_after
    )


def curve(run: Run) -> list[dict[str, Any]]:
    """Steps and evaluations; checkpoints come when they are complete."""
    return [
        {k: v for k, v in record.items() if k not in MEASURED}
        for record in read_metrics(run.output / "metrics.jsonl")
        if "checkpoint_s" not in record
    ]


def test_a_checkpoint_is_resumed_exactly_and_only_with_its_own_run(run: Run) -> None:
    train(run)
    whole = curve(run)
    assert [record["step"] for record in whole] == [1, 2, 3, 3, 4, 5, 6, 6]
    assert len({record["loss"] for record in whole if "loss" in record}) == 6
    first_step, first_evaluation = (read_metrics(run.output / "metrics.jsonl")[i] for i in (0, 3))
    assert {"step", "loss", "grad_norm", "lr", "tokens", "loss_ema", "tflops", "memory_peak_gb"} <= set(first_step)
    assert set(first_evaluation) == {"step", "eval_loss", "eval_tokens", "eval_perplexity", "eval_accuracy"}
    assert 0 < first_step["data_wait"] < 1
    assert first_step["tokens_per_s"] == pytest.approx(first_step["tokens"] / first_step["step_time_s"])
    first, last = (path for _, path in complete_checkpoints(run.output))
    reference = {path.name: path.read_bytes() for path in last.iterdir()}

    with pytest.raises(UserError, match="holds a run with checkpoints up to step 6; use --resume"):
        run.launch()
    with pytest.raises(UserError, match=r"the run is complete, train\.steps is 6"):
        run.launch(resume=True)
    (run.output / "LATEST").write_text(f"{first.name}\n")
    for override, expected in {
        "layout.dp=2": "was saved with layout one process, the run has dp=2",
        "train.seed=6": r"train\.seed was 5, now it is 6",
    }.items():
        with pytest.raises(UserError, match=expected):
            run.launch(override, resume=True)
    assert run.launch("optimizer.lr=0.02", resume=True, dry_run=True) == 0
    assert any(line.endswith("changed since step_00000003: optimizer.lr 0.01 -> 0.02") for line in run.lines)
    assert any(line.endswith("step_00000006 will be replaced when the run passes there again") for line in run.lines)

    train(run, resume=first)
    assert curve(run) == whole
    for name in ("model-rank00000.safetensors", "optimizer-rank00000.safetensors", "random-rank00000.json"):
        assert (last / name).read_bytes() == reference[name], name


def test_stopping_saves_and_the_rest_follows(run: Run) -> None:
    train(run, stop_after=2)
    ((step, directory),) = complete_checkpoints(run.output)
    assert step == 2
    train(run, resume=directory)
    stopped = curve(run)
    shutil.rmtree(run.output)
    train(run)
    assert stopped == curve(run)


def test_a_loss_that_is_not_finite_ends_the_run_or_is_skipped(run: Run) -> None:
    huge = ("optimizer.lr=1e30", "schedule.warmup_steps=0", "train.eval_every=0")
    with pytest.raises(RunError, match=r"step 2: loss nan.*nothing was updated.*positions 2\.\.3 of the stream"):
        train(run, *huge)
    assert [record["step"] for record in curve(run)] == [1]
    with pytest.raises(RunError, match="step 4"):
        train(run, *huge, "guard.non_finite=skip", "guard.max_skips=3")
    assert [record["loss"] is None for record in curve(run)] == [False, True, True]
    progress = (run.output / LOGS / "progress.txt").read_text()
    assert "step skipped (2 in a row, 3 end the run)" in progress


def test_metrics_drop_what_a_resumed_run_will_do_again(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    metrics = MetricsFile(path, resume_step=0)
    for step in range(1, 6):
        metrics.after_step({"step": step, "loss": 1 / step})
    metrics.close(None)
    with path.open("a") as file:
        file.write('{"step": 6, "lo')  # killed while writing
    metrics = MetricsFile(path, resume_step=3)
    metrics.after_step({"step": 4, "loss": 0.1})
    metrics.close(None)
    assert [(record["step"], record["loss"]) for record in read_metrics(path)] == [
        (1, 1.0),
        (2, 0.5),
        (3, 1 / 3),
        (4, 0.1),
    ]
    path.write_text("nonsense\n")
    with pytest.raises(UserError, match="line 1 is not valid JSON"):
        read_metrics(path)
    path.write_text('{"loss": 1}\n')
    with pytest.raises(UserError, match="line 1 is no record with a step"):
        read_metrics(path)
