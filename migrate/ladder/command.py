"""What `msmigrate ladder` does: runs the rungs, compares them, and says which one deviates first and why."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mappings.errors import UserError
from migrate.ladder import judging
from migrate.ladder.causes import hint, likely
from migrate.ladder.measured import FIELDS, Measured, read
from migrate.ladder.rungs import AGAIN, Rung, rungs_of
from migrate.ladder.running import Ladder, Machines, run_rung
from migrate.report import Curve, Finding, Report, Severity, Stage, Verdict

DEVIATES, FAILED, SLOW = "L101", "L102", "L103"
GOOD_EFFICIENCY = 0.6
"""T6: below this share of linear speed, a rung gets advice."""


@dataclass(frozen=True, eq=False)
class Climbed:
    """A rung that ran."""

    rung: Rung
    measured: Measured


def ladder(
    config_path: Path,
    *,
    sizes: Sequence[int],
    steps: int,
    overrides: Sequence[str] = (),
    machines: Machines | None = None,
    force: bool = False,
    say: Callable[[str], None],
) -> Report:
    """Runs the rungs and compares them.

    Args:
        config_path: run configuration whose training is climbed.
        sizes: ranks of each rung.
        steps: of each rung.
        overrides: `section.field=value` strings.
        machines: of a cluster.
        force: run finished rungs again.
        say: receives each line of progress.

    Raises:
        UserError: the configuration does not fit, or the rungs are no ladder.
    """
    from ms_models.train.config import load

    config = load(config_path, overrides)
    family, raw = _model(config)
    rungs, again = rungs_of(config, family, raw, sizes)
    settings = Ladder(
        config_path, config, min(steps, config.train.steps), machines or Machines(), force, tuple(overrides)
    )
    report = Report("ladder", str(config_path))
    report.facts = {
        "steps": settings.steps,
        "global_batch": config.global_batch,
        "precision": config.precision.compute,
        "cores": os.cpu_count() or 1,
    }
    climbed: list[Climbed] = []
    repetition: Measured | None = None
    for rung in (rungs[0], again, *rungs[1:]):
        if problem := _problem(settings, rung, say, is_first=rung is rungs[0]):
            _failed(report, rung, problem, settings)
            break
        if settings.machines.node_rank > 0:
            continue
        measured = read(settings.root / rung.directory)
        if rung.name == AGAIN:
            repetition = measured
        else:
            climbed.append(Climbed(rung, measured))
    if settings.machines.node_rank > 0:
        report.stages.append(Stage("ladder", Verdict.SKIPPED, "the first machine compares"))
        return report
    _compare(report, climbed, repetition, judging.FLOORS[config.precision.compute])
    if climbed:
        _efficiency(report, climbed, min(settings.machines.per_node, climbed[-1].rung.ranks), config.train.threads)
    return report


def _model(config: Any) -> tuple[Any, dict[str, Any]]:
    """Family and `config.json`; (None, {}) of converted code."""
    from mappings.families import family_for_config
    from mappings.formats.hf_directory import read_config

    if config.model.path is None:
        return None, {}
    directory = Path(config.model.path)
    raw = read_config(directory)
    return family_for_config(raw, str(directory / "config.json")), raw


def _problem(settings: Ladder, rung: Rung, say: Callable[[str], None], *, is_first: bool) -> str:
    """Runs a rung; what was wrong with it, or nothing. What is wrong with the first one is wrong with the run."""
    try:
        code = run_rung(settings, rung, say)
    except UserError as error:
        if is_first:
            raise
        return f"did not run: {error}"
    return f"ended with exit code {code}" if code else ""


def _failed(report: Report, rung: Rung, problem: str, settings: Ladder) -> None:
    message = f"rung {rung.name} ({rung.layout}) {problem}"
    logs = settings.root / rung.directory / "logs"
    report.findings.append(
        Finding(
            FAILED,
            Severity.ERROR,
            message,
            "a rung that does not run cannot be compared, nor those above it",
            f"read {logs}; `msmigrate ladder` goes on with this rung",
        )
    )
    report.stages.append(Stage(f"rung {rung.name}", Verdict.COULD_NOT_RUN, message))


def _compare(report: Report, climbed: list[Climbed], repetition: Measured | None, floor: float) -> None:
    if not climbed:
        return
    first = climbed[0]
    _noise(report, first.measured, repetition, floor)
    is_named = False
    rows = []
    for number, one in enumerate(climbed):
        before = climbed[number - 1] if number else None
        rows.append({"rung": one.rung.name, "layout": str(one.rung.layout), **_speed(first, one)})
        for field in FIELDS:
            curve = one.measured.curves[field]
            steps = sorted(curve)
            report.curves.append(
                Curve(f"rung {one.rung.name}", [float(s) for s in steps], [curve[s] for s in steps], field)
            )
        if before is None:
            report.stages.append(Stage("rung 1", Verdict.PASS, "the reference", len(one.measured.steps)))
            continue
        is_named = _judge(report, first, before, one, repetition, floor, is_named)
    report.facts["rungs"] = rows


def _noise(report: Report, first: Measured, repetition: Measured | None, floor: float) -> None:
    if repetition is None:
        return
    figures: dict[str, float | int | str] = {f: judging.largest(first, repetition, f) for f in FIELDS}
    report.stages.append(
        Stage(
            "noise",
            Verdict.PASS,
            f"rung 1 twice, batch dealt out otherwise; band {judging.FACTOR:g} times as wide, at least {floor:g}",
            len(first.steps),
            figures,
        )
    )


def _judge(
    report: Report,
    first: Climbed,
    before: Climbed,
    one: Climbed,
    repetition: Measured | None,
    floor: float,
    is_named: bool,
) -> bool:
    """Adds the stage of a rung; whether a deviating rung has been named by now."""
    figures: dict[str, float | int | str] = {}
    for reference in dict.fromkeys((first, before)):
        for field in FIELDS:
            figures[f"{field} to rung {reference.rung.name}"] = judging.largest(reference.measured, one.measured, field)
    deviation = judging.first_deviation(first.measured, repetition, one.measured, floor)
    name = f"rung {one.rung.name}"
    compared = len(one.measured.steps)
    if deviation is None:
        report.stages.append(Stage(name, Verdict.PASS, f"{one.rung.layout}: in the band", compared, figures))
        return is_named
    what = (
        f"{deviation.field} leaves the band at step {deviation.step}: {deviation.found:.8g}, rung 1 has "
        f"{deviation.expected:.8g}, relative {deviation.relative:.3g}, limit {deviation.limit:.3g}"
    )
    report.stages.append(Stage(name, Verdict.FAIL, f"{one.rung.layout}: {what}", compared, figures))
    if not is_named:
        grown = one.rung.ranks // before.rung.ranks
        cause = likely(one.rung.added, deviation, first.measured.steps[0], grown)
        report.findings.append(
            Finding(
                DEVIATES,
                Severity.ERROR,
                f"{name} is the first that deviates; it adds {one.rung.added}: {what}",
                f"likely cause: {cause}",
                hint(one.rung.added),
            )
        )
    return True


def _speed(first: Climbed, one: Climbed) -> dict[str, float | int | str]:
    figures: dict[str, float | int | str] = {"ranks": one.rung.ranks}
    if one.measured.tokens_per_s is not None and one.measured.step_s is not None:
        figures |= {"tokens/s": one.measured.tokens_per_s, "step s": one.measured.step_s}
        if first.measured.tokens_per_s:
            figures["efficiency"] = one.measured.tokens_per_s / first.measured.tokens_per_s / one.rung.ranks
    if one.measured.memory_gb is not None:
        figures["peak GB"] = one.measured.memory_gb
    return figures


def _efficiency(report: Report, climbed: list[Climbed], neighbours: int, threads: int | None) -> None:
    """Advice about slow rungs; a note in its place where ranks share cores, of which one process alone takes all.

    Args:
        report: with the speeds of the rungs.
        climbed: rungs that ran.
        neighbours: ranks of the largest rung on one machine.
        threads: of each rank; None takes all cores in rung 1 and a part of them in the others.
    """
    from ms_models.train.launch.checks.devices import has_npu

    cores = int(report.facts["cores"])
    rows = {row["rung"]: row for row in report.facts["rungs"]}
    if not has_npu() and neighbours > 1 and (threads is None or threads * neighbours > cores):
        report.facts["efficiency_note"] = (
            f"up to {neighbours} ranks share the {cores} cores of a machine, of which one rank alone takes "
            f"{threads or 'all'}: efficiencies say nothing here, curves do"
        )
        return
    for one in climbed[1:]:
        efficiency = rows[one.rung.name].get("efficiency")
        if isinstance(efficiency, float) and efficiency < GOOD_EFFICIENCY:
            report.findings.append(
                Finding(
                    SLOW,
                    Severity.NOTE,
                    f"rung {one.rung.name} ({one.rung.layout}): {100 * efficiency:.0f} % of linear speed",
                    "below 60 % devices wait more than they should",
                    "see `msmigrate plan` for layouts with less traffic; a larger micro-batch or more accumulation; "
                    "--profile for where the time goes",
                )
            )


def check_machines(nodes: int | None, node_rank: int | None, master: str | None, ranks: int) -> Machines:
    """Where the ladder runs.

    Raises:
        UserError: a cluster without its first machine, or ranks that do not divide over it.
    """
    if nodes is None or nodes == 1:
        return Machines()
    if master is None:
        raise UserError("ladder: --nnodes above 1 needs --master HOST:PORT")
    if ranks % nodes:
        raise UserError(f"ladder: the largest rung of {ranks} ranks does not divide over {nodes} machines")
    return Machines(nodes, node_rank or 0, master, ranks // nodes)
