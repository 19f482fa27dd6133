"""Every symptom of the trouble table is found in a run that was made to show it, and none in a healthy one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from mappings.errors import UserError
from migrate.cli import main
from migrate.report.model import Report, Severity
from migrate.trouble.register import RULES, markdown, trouble
from tests.trouble.trouble_runs import STEPS, WARMUP, Run, healthy, restart

ROOT = Path(__file__).parents[2]


def flat_loss(run: Run) -> None:
    run.change("loss", lambda one: 7.6 + 0.001 * (one["step"] % 3))
    run.change("loss_ema", 7.6)
    for one in run.evaluations:
        one["eval_loss"] = 7.6


def all_losses(change: Callable[[float, int], float]) -> Callable[[Run], None]:
    def spoil(run: Run) -> None:
        for name in ("loss", "loss_ema"):
            run.change(name, lambda one, name=name: change(one[name], one["step"]))
        for one in run.evaluations:
            one["eval_loss"] = change(one["eval_loss"], one["step"])

    return spoil


def steps(key: str, value: object, first: int = 1, last: int = STEPS) -> Callable[[Run], None]:
    return lambda run: run.change(key, value, first, last)


def config(section: str, **fields: object) -> Callable[[Run], None]:
    return lambda run: run.config.setdefault(section, {}).update(fields)


def evaluations(losses: list[float]) -> Callable[[Run], None]:
    def spoil(run: Run) -> None:
        for one, loss in zip(run.evaluations, losses, strict=True):
            one["eval_loss"] = loss

    return spoil


def checkpoints(**fields: float) -> Callable[[Run], None]:
    return lambda run: [one.update(fields) for one in run.checkpoints] and None


def slow_rank(run: Run) -> None:
    run.change("slowest_rank", lambda one: 1 if one["step"] % 10 else 0)
    run.change("compute_max_s", 0.6)


def hiccups(run: Run) -> None:
    for one in run.steps[9::20]:
        one["step_time_s"] = 3.0


def one_lr_jump(run: Run) -> None:
    run.change("lr", lambda one: one["lr"] / 4, 150)


def rise_behind_warmup(loss: float, step: int) -> float:
    return loss + 2.0 * max(0.0, 1 - abs(step - WARMUP - 12) / 12) if WARMUP < step < WARMUP + 24 else loss


def few_documents(run: Run) -> None:
    evaluations([5.0, 4.0, 3.6, 3.0, 2.5, 2.0])(run)
    run.data["sources"] = [{"documents": {"train": 110, "validation": 2}}]


CASES: dict[str, tuple[Callable[[Run], object], set[str]]] = {
    "T101": (flat_loss, set()),
    "T102": (steps("loss", 9.0, 200, 200), set()),
    "T103": (steps("loss", 12.0, 1, 1), set()),
    "T104": (all_losses(lambda loss, step: loss * 0.05), set()),
    "T105": (all_losses(lambda loss, step: loss + 0.01 * max(0, step - 200)), set()),
    "T201": (steps("loss", None, 77, 78), set()),
    "T202": (steps("loss_scale", lambda one: 65536 / 2 ** (one["step"] // 20)), set()),
    "T204": (steps("outcome", "spike", 120, 122), set()),
    "T203": (
        lambda run: run.events.append({"at": 1, "step": 300, "event": "failure", "kind": "RunError", "message": "nan"}),
        set(),
    ),
    "T301": (steps("grad_norm", lambda one: 0.2 + one["step"] / 150), set()),
    "T302": (steps("grad_norm", lambda one: 5 * one["grad_norm"]), set()),
    "T303": (steps("grad_norm", 0.0, 50, 60), set()),
    "T401": (steps("lr", 0.0, 250), set()),
    "T402": (all_losses(rise_behind_warmup), set()),
    "T403": (one_lr_jump, set()),
    "T501": (steps("data_wait", 0.3), set()),
    "T502": (lambda run: run.data["splits"]["train"].update(tokens=1_500_000), set()),
    "T503": (lambda run: run.data["splits"]["train"].update(rows=2000, tokens=254_000), set()),
    "T601": (slow_rank, set()),
    "T602": (steps("tokens_per_s", lambda one: 16000 - 30 * one["step"]), set()),
    "T603": (hiccups, set()),
    "T604": (steps("mfu", 0.05), set()),
    "T605": (steps("reduce_share", 0.35), set()),
    "T701": (steps("memory_gb", lambda one: 1 + 0.01 * one["step"]), set()),
    "T702": (lambda run: run.ranks[1].update(memory_peak_gb=3.0), set()),
    "T801": (lambda run: run.restarts.append(restart(1, 120)), set()),
    "T802": (lambda run: run.restarts.extend([restart(1, 120), restart(2, 120)]), {"T801"}),
    "T803": (lambda run: run.restarts.append(restart(1, 120, "stalled")), {"T801"}),
    "T804": (lambda run: (run.events.pop(), run.config["train"].update(steps=500)), set()),
    "T901": (checkpoints(checkpoint_blocked_s=9.0), set()),
    "T902": (checkpoints(checkpoint_s=90.0), set()),
    "T903": (lambda run: (run.checkpoints.clear(), run.change("step_time_s", 10.0)), set()),
    "TA01": (evaluations([5.0, 4.0, 3.6, 3.7, 3.9, 4.2]), set()),
    "TA02": (evaluations([5.0, 4.0, 3.6, 3.0, 2.5, 2.0]), set()),
    "TA04": (few_documents, set()),
    "TA03": (evaluations([8.0, 7.0, 6.0, 5.5, 5.0, 4.5]), set()),
    "TB01": (lambda run: (run.config["launch"].update(nodes=4), run.config["layout"].update(tp=4)), set()),
    "TB02": (config("layout", pp=8), set()),
}


def found(report: Report) -> set[str]:
    return {finding.code for finding in report.findings}


def test_every_rule_has_a_run_that_shows_it() -> None:
    assert set(CASES) == set(RULES)


@pytest.mark.parametrize("seed", range(5))
def test_a_healthy_run_has_no_symptom(tmp_path: Path, seed: int) -> None:
    report = trouble(healthy(seed).write(tmp_path / "run"))
    assert found(report) == set()
    assert report.exit_code == 0
    # Only the loss scale is unknown to a run in fp32.
    assert [line.split()[0] for line in report.facts["not looked for"]] == ["T202"]


@pytest.mark.parametrize("code", list(CASES))
def test_a_symptom_is_found_with_its_figures(tmp_path: Path, code: str) -> None:
    run, (spoil, also) = healthy(), CASES[code]
    spoil(run)
    report = trouble(run.write(tmp_path / "run"))
    assert found(report) == {code, *also}
    finding = next(one for one in report.findings if one.code == code)
    assert any(letter.isdigit() for letter in finding.message) and finding.file
    assert report.exit_code == (0 if RULES[code].severity is Severity.NOTE and not also else 1)


def test_a_run_that_has_just_begun_is_not_judged(tmp_path: Path) -> None:
    run = healthy()
    del run.steps[5:], run.evaluations[:], run.checkpoints[:]
    run.events.pop()
    report = trouble(run.write(tmp_path / "run"))
    assert found(report) <= {"T804"}
    assert len(report.facts["not looked for"]) > 10


def test_an_average_that_lags_behind_is_no_gap(tmp_path: Path) -> None:
    run = healthy()
    evaluation = run.evaluations[-1]
    step = next(one for one in run.steps if one["step"] == evaluation["step"])
    evaluation["eval_loss"] = step["loss_ema"] - 0.7
    assert "TA02" in found(trouble(run.write(tmp_path / "far")))
    own, step["loss"] = step["loss"], None  # left out, it was no number
    assert "TA02" in found(trouble(run.write(tmp_path / "without")))
    step["loss"] = own
    step["loss"] = step["loss_ema"] - 0.4  # it falls that fast
    assert "TA02" not in found(trouble(run.write(tmp_path / "falling")))


def test_a_low_validation_loss_is_a_warning_only_over_documents_enough(tmp_path: Path) -> None:
    for count, code in ((1, "TA04"), (19, "TA04"), (20, "TA02")):
        run = healthy()
        CASES["TA02"][0](run)
        run.data["sources"] = [{"documents": {"train": 900, "validation": count - 1}}, {"documents": {"validation": 1}}]
        report = trouble(run.write(tmp_path / str(count)))
        assert found(report) == {code}
        assert report.exit_code == (0 if code == "TA04" else 1)
    assert "all validation rows are of 19 documents" in trouble(tmp_path / "19").findings[0].message


def test_data_beside_the_run_is_found_from_anywhere(tmp_path: Path) -> None:
    directory = healthy().write(tmp_path / "run")
    config = directory / "config.yaml"
    config.write_text(config.read_text().replace(f"{directory}/data", "run/data"))
    assert "T502" not in " ".join(trouble(directory).facts["not looked for"])


def test_the_command_prints_findings_and_ends_with_their_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = healthy()
    run.change("data_wait", 0.3)
    directory = run.write(tmp_path / "run")
    assert main(["trouble", str(directory)]) == 1
    text = capsys.readouterr().out
    assert "T501" in text and "30%" in text and "fix:" in text
    assert main(["trouble", str(tmp_path)]) == 2
    with pytest.raises(UserError, match="no run directory"):
        trouble(tmp_path)


def test_the_table_in_the_documentation_is_that_of_the_rules() -> None:
    assert (ROOT / "docs" / "trouble.md").read_text(encoding="utf-8") == markdown()
