"""Layouts of a ladder, bands, causes, and reports; no process is started."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mappings.errors import UserError
from mappings.families import family_for_config
from mappings.layout import ParallelLayout
from migrate.ladder import causes, command, judging
from migrate.ladder.causes import Deviation, likely
from migrate.ladder.measured import Measured, read
from migrate.ladder.rungs import rungs_of
from migrate.ladder.running import FINISHED, Ladder, Machines, is_finished, run_rung
from migrate.report import Report, Verdict
from ms_models.train.config import RunConfig, load
from ms_models.train.services.progress import STOPPED
from tests.ms_models.train.run_helpers import LLAMA, write_config


def config_of(tmp_path: Path, **sections: dict[str, Any]) -> RunConfig:
    return load(
        write_config(tmp_path / "run.yaml", tmp_path / "model", tmp_path / "data", tmp_path / "out", **sections)
    )


def layouts(config: RunConfig, sizes: list[int], raw: dict[str, Any] = LLAMA) -> list[str]:
    rungs, _ = rungs_of(config, family_for_config(raw), raw, sizes)
    assert all(rung.layout.dp * rung.micro_batch_size * rung.accumulation == config.global_batch for rung in rungs)
    return [f"{rung.added}: {rung.layout}" for rung in rungs]


def test_each_rung_adds_an_axis(tmp_path: Path) -> None:
    assert layouts(config_of(tmp_path), [1, 2, 4, 8]) == [
        ": one process", "dp: dp=2", "tp: tp=2 dp=2", "pp: tp=2 dp=2 pp=2",
    ]  # fmt: skip


def test_axes_of_the_run_come_first_and_zero_goes_along(tmp_path: Path) -> None:
    config = config_of(tmp_path, layout={"pp": 2, "dp": 2, "zero": 1})
    assert layouts(config, [1, 2, 4]) == [": one process", "dp: dp=2 zero=1", "pp: dp=2 pp=2 zero=1"]
    config = config_of(tmp_path, layout={"tp": 2, "cp": 2}, parallel={"sequence_parallel": True})
    rungs, _ = rungs_of(config, None, {}, [1, 2, 4])
    assert [(str(rung.layout), rung.sequence_parallel) for rung in rungs[1:]] == [("tp=2", True), ("tp=2 cp=2", True)]


def test_an_axis_the_model_cannot_take_is_passed_over(tmp_path: Path) -> None:
    odd = {**LLAMA, "num_attention_heads": 5, "num_key_value_heads": 5}
    assert layouts(config_of(tmp_path), [1, 2, 4], odd)[2] == "pp: dp=2 pp=2"


def test_two_axes_may_come_at_once(tmp_path: Path) -> None:
    assert layouts(config_of(tmp_path), [1, 4]) == [": one process", "dp+tp: tp=2 dp=2"]


def test_the_repetition_deals_the_batch_out_otherwise(tmp_path: Path) -> None:
    rungs, again = rungs_of(config_of(tmp_path), None, {}, [1])
    assert (rungs[0].micro_batch_size, rungs[0].accumulation) == (2, 4)
    assert (again.micro_batch_size, again.accumulation) == (1, 8)


@pytest.mark.parametrize("sizes", [[2, 4], [1, 3], [1, 4, 2], [1, 1], []])
def test_what_is_no_ladder_is_refused(tmp_path: Path, sizes: list[int]) -> None:
    with pytest.raises(UserError, match="must begin with 1 and grow by powers of two"):
        rungs_of(config_of(tmp_path), None, {}, sizes)


def test_a_batch_too_small_for_the_replicas_is_refused(tmp_path: Path) -> None:
    config = config_of(tmp_path, train={"micro_batch_size": 1, "accumulation": 1})
    with pytest.raises(UserError, match="no axis left for 2 ranks; dp: ladder: a global batch of 1"):
        rungs_of(
            config, family_for_config(LLAMA), {**LLAMA, "num_attention_heads": 5, "num_key_value_heads": 5}, [1, 2]
        )


def measured(losses: list[float], norms: list[float] | None = None) -> Measured:
    norms = norms or [1.0] * len(losses)
    curves = {"loss": dict(enumerate(losses, 1)), "grad_norm": dict(enumerate(norms, 1))}
    return Measured(curves, 100.0, 0.1, 1.0)


def test_noise_is_no_deviation_and_more_is_one() -> None:
    one, again = measured([5.0, 4.0, 3.0]), measured([5.0, 4.0 * (1 + 1e-5), 3.0])
    near, far = measured([5.0, 4.0 * (1 + 9e-5), 3.0]), measured([5.0, 4.0 * (1 + 2e-4), 3.0])
    assert judging.first_deviation(one, again, near, 2e-6) is None
    found = judging.first_deviation(one, again, far, 2e-6)
    assert found is not None
    assert (found.field, found.step) == ("loss", 2)
    assert found.relative == pytest.approx(2e-4)
    assert found.limit == pytest.approx(1e-4)
    assert judging.first_deviation(one, None, near, 2e-6) is not None


def test_a_loss_that_is_no_number_deviates() -> None:
    found = judging.first_deviation(measured([5.0, 4.0]), None, measured([5.0, math.nan]), 1.0)
    assert found is not None
    assert found.relative == math.inf


@pytest.mark.parametrize(
    ("deviation", "added", "text"),
    [
        (Deviation("loss", 1, 5.0, 4.0, 1e-6), "dp", "disjoint parts of the global batch"),
        (Deviation("grad_norm", 1, 1.0, 0.7, 1e-6), "dp", "not summed over replicas"),
        (Deviation("grad_norm", 1, 1.0, 2.0, 1e-6), "dp", "the norm is 2 times what it should be"),
        (Deviation("grad_norm", 1, 1.0, 2**0.5, 1e-6), "tp", "the norm is sqrt(2) times"),
        (Deviation("loss", 7, 5.0, 5.1, 1e-6), "dp", "stale"),
        (Deviation("grad_norm", 1, 1.0, 1.3, 1e-6), "pp", "number of micro-batches"),
        (Deviation("loss", 1, 5.0, 4.0, 1e-6), "", "does not repeat itself"),
    ],
)
def test_the_cause_follows_from_axis_and_place(deviation: Deviation, added: str, text: str) -> None:
    assert text in likely(added, deviation, 1, 2)


def test_every_axis_has_every_cause() -> None:
    for axis in ("dp", "tp", "pp", "cp"):
        assert set(causes.causes()[axis]) == {"forward", "gradient", "update", "next"}


@pytest.fixture
def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Launches write curves in place of training; `losses` by directory, `calls` in order."""
    from ms_models.train.launch import starting

    state: dict[str, Any] = {"losses": {}, "calls": [], "codes": {}}

    def launch(path: Path, overrides: list[str], *, stop_after: int, echo: Any) -> int:
        settings = dict(item.split("=", 1) for item in overrides)
        directory = Path(json.loads(settings["output.directory"]))
        state["calls"].append(directory.name)
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "step_00000003").mkdir(exist_ok=True)
        losses = state["losses"].get(directory.name, [5.0, 4.0, 3.0])[:stop_after]
        records = [
            {"step": n, "loss": loss, "grad_norm": 1.0, "tokens_per_s": 100.0, "step_time_s": 0.1}
            for n, loss in enumerate(losses, 1)
        ]
        (directory / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
        return int(state["codes"].get(directory.name, 0))

    monkeypatch.setattr(starting, "launch", launch)
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(LLAMA))
    state["config"] = write_config(tmp_path / "run.yaml", model, tmp_path / "data", tmp_path / "out")
    return state


def climb(played: dict[str, Any], **options: Any) -> Any:
    return command.ladder(played["config"], **{"sizes": [1, 2, 4], "steps": 3, "say": lambda line: None, **options})


def note_of(report: Report) -> str:
    assert not report.findings
    return str(report.facts["efficiency_note"])


def test_a_healthy_ladder_is_clean_and_not_run_twice(played: dict[str, Any]) -> None:
    report = climb(played)
    assert report.exit_code == 0
    assert played["calls"] == ["rung_1", "rung_1_again", "rung_2", "rung_4"]
    assert [stage.name for stage in report.stages] == ["noise", "rung 1", "rung 2", "rung 4"]
    assert {curve.group for curve in report.curves} == {"loss", "grad_norm"}
    assert report.facts["rungs"][1]["efficiency"] == 0.5
    assert report.stages[3].figures["loss to rung 2"] == 0
    assert climb(played).exit_code == 0
    assert len(played["calls"]) == 4, "finished rungs are not run again"
    climb(played, steps=2)
    assert len(played["calls"]) == 8, "other steps make other rungs"
    climb(played, steps=2, force=True)
    assert len(played["calls"]) == 12
    out = Path(played["config"]).parent / "out" / "ladder"
    assert not list(out.glob("*/step_*")), "a ladder leaves no checkpoints"


def test_the_first_rung_that_deviates_is_named(played: dict[str, Any]) -> None:
    played["losses"] = {"rung_2": [5.0, 4.0, 3.5], "rung_4": [6.0, 4.0, 3.0]}
    report = climb(played)
    assert report.exit_code == 1
    assert [stage.verdict for stage in report.stages] == [Verdict.PASS] * 2 + [Verdict.FAIL] * 2
    (finding,) = [one for one in report.findings if one.code == command.DEVIATES]
    assert "rung 2 is the first that deviates; it adds dp: loss leaves the band at step 3: 3.5" in finding.message
    assert "stale" in finding.why


def test_a_rung_that_fails_ends_the_ladder_and_is_run_again(played: dict[str, Any]) -> None:
    played["codes"] = {"rung_2": 1}
    report = climb(played)
    assert report.exit_code == 2
    assert played["calls"] == ["rung_1", "rung_1_again", "rung_2"]
    assert any(one.code == command.FAILED and "exit code 1" in one.message for one in report.findings)
    played["codes"] = {}
    assert climb(played).exit_code == 0
    assert played["calls"][3:] == ["rung_2", "rung_4"]


def test_a_rung_that_does_not_fit_is_named(played: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    from ms_models.train.launch import starting

    true_launch = starting.launch

    def refuse(path: Path, overrides: list[str], **options: Any) -> int:
        if any('"tp": 2' in item for item in overrides):
            raise UserError("rank 1: no room")
        return true_launch(path, overrides, **options)

    monkeypatch.setattr(starting, "launch", refuse)
    report = climb(played)
    assert report.exit_code == 2
    assert report.findings[0].message == "rung 4 (tp=2 dp=2) did not run: rank 1: no room"


def test_slow_rungs_get_advice_where_ranks_have_devices_of_their_own(
    played: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    own_cores = ["train.threads=16"]
    notes = [one for one in climb(played, overrides=own_cores).findings if one.code == command.SLOW]
    assert [note.message.split("%")[0][-3:].strip() for note in notes] == ["50", "25"]
    report = climb(played, overrides=["train.threads=17"])
    assert "up to 4 ranks share the 64 cores of a machine, of which one rank alone takes 17" in note_of(report)
    # One rank without a number of threads takes all cores: two of them share however many there are.
    report = climb(played, sizes=[1, 2])
    assert "up to 2 ranks share the 64 cores of a machine, of which one rank alone takes all" in note_of(report)
    assert not report.findings


def test_machines_of_one_rank_each_share_no_cores(played: dict[str, Any]) -> None:
    report = climb(played, machines=Machines(4, 0, "host:1", 1))
    assert "efficiency_note" not in report.facts
    assert len([one for one in report.findings if one.code == command.SLOW]) == 2


def test_rungs_give_no_advice_to_go_on(played: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    from ms_models.train.launch import starting

    true_launch = starting.launch

    def speak(path: Path, overrides: list[str], **options: Any) -> int:
        options["echo"](f"rank 0: {STOPPED} 3 of 6; go on with --resume")
        options["echo"]("step 3/6")
        return true_launch(path, overrides, **options)

    monkeypatch.setattr(starting, "launch", speak)
    lines: list[str] = []
    climb(played, say=lines.append)
    assert lines.count("step 3/6") == 4
    assert not any("--resume" in line for line in lines)


def test_a_cluster_runs_small_rungs_on_the_first_machine(played: dict[str, Any]) -> None:
    machines = command.check_machines(2, 1, "host:1", 4)
    assert machines == Machines(2, 1, "host:1", 2)
    report = climb(played, machines=machines)
    assert played["calls"] == ["rung_4"]
    assert report.stages[-1].verdict is Verdict.SKIPPED
    with pytest.raises(UserError, match="needs --master"):
        command.check_machines(2, 0, None, 4)
    with pytest.raises(UserError, match="does not divide over 3 machines"):
        command.check_machines(3, 0, "host:1", 4)


def test_a_rung_passes_its_settings_on(tmp_path: Path) -> None:
    config = config_of(tmp_path, layout={"tp": 2})
    rungs, _ = rungs_of(config, family_for_config(LLAMA), LLAMA, [1, 2])
    settings = Ladder(tmp_path / "run.yaml", config, 3, Machines(2, 1, "h:1", 1)).settings(rungs[1])
    changed = load(tmp_path / "run.yaml", settings)
    assert changed.layout == ParallelLayout(tp=2)
    assert (changed.launch.nodes, changed.launch.node_rank, changed.launch.master) == (2, 1, "h:1")
    assert changed.checkpoint.every == 0


def test_text_is_prepared_once(tmp_path: Path) -> None:
    path = write_config(tmp_path / "run.yaml", tmp_path / "model", tmp_path, tmp_path / "out")
    path.write_text(path.read_text().replace(f"path: {tmp_path}\n", "text: [stdlib]\n  seq_length: 16\n"))
    config = load(path)
    rungs, _ = rungs_of(config, None, {}, [1, 2])
    ladder = Ladder(path, config, 3)
    assert load(path, ladder.settings(rungs[0])).data.text == ("stdlib",)
    shared = load(path, ladder.settings(rungs[1])).data
    assert (shared.text, shared.path) == ((), str(tmp_path / "out" / "ladder" / "rung_1" / "data"))


def test_a_damaged_mark_is_an_error(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    rungs, _ = rungs_of(config, None, {}, [1])
    ladder = Ladder(tmp_path / "run.yaml", config, 3)
    mark = ladder.root / rungs[0].directory / FINISHED
    mark.parent.mkdir(parents=True)
    mark.write_text("{")
    with pytest.raises(UserError, match="not valid JSON"):
        run_rung(ladder, rungs[0], lambda line: None)
    assert not is_finished(replace(ladder, force=True), rungs[0])


def test_metrics_without_steps_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        read(tmp_path)
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "eval_loss": 2.0}\n')
    with pytest.raises(UserError, match="no record of a step"):
        read(tmp_path)
