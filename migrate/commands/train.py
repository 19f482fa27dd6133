"""`msmigrate train`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from mappings.errors import UserError
from migrate.commands.options import ReportFile, save


def train(
    config: Annotated[Path | None, typer.Argument(exists=True, dir_okay=False, help="Run configuration, YAML.")] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="Override a field, e.g. --set train.steps=100. Repeatable.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the last checkpoint of the run.")] = False,
    resume_from: Annotated[
        str | None, typer.Option(help="Go on from this checkpoint of the run, e.g. step_00000100.")
    ] = None,
    reshard: Annotated[bool, typer.Option("--reshard", help="Cut the checkpoint anew for the run's layout.")] = False,
    stop_after: Annotated[int | None, typer.Option(min=1, help="Save and stop after this step.")] = None,
    restarts: Annotated[
        int | None, typer.Option(min=0, help="Times to go on from the last good checkpoint after a crash or a hang.")
    ] = None,
    nnodes: Annotated[int | None, typer.Option(min=1, help="Machines; start the same command on each.")] = None,
    node_rank: Annotated[int | None, typer.Option(min=0, help="Which of them this is, from 0.")] = None,
    master: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Of machine 0.")] = None,
    profile: Annotated[
        str | None, typer.Option(metavar="steps=A:B", help="Record these steps with the profiler of MindSpore.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check everything and start nothing.")] = False,
    device_memory: Annotated[
        float | None, typer.Option(min=0.001, help="With --dry-run: GiB of a device, for the estimate of a rank.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="With --dry-run: print the verdict as JSON.")] = False,
    report: ReportFile = None,
    show_fields: Annotated[bool, typer.Option("--fields", help="Print docs/run-fields.md: every field.")] = False,
) -> None:
    """Train a model: starts its own processes, one or many."""
    if show_fields:
        from ms_models.train.config.field_table import markdown

        typer.echo(markdown(), nl=False)
        return
    if config is None:
        raise UserError("train: give a run configuration, or --fields for what can be in one")
    settings = [*(overrides or []), *_settings(restarts=restarts, nodes=nnodes, node_rank=node_rank, master=master)]
    settings += _profiled(profile)
    if dry_run:
        from migrate.commands.dry_run import dry_run as judge
        from migrate.commands.dry_run import report_of

        verdict = judge(
            config,
            settings,
            resume=resume,
            resume_from=resume_from,
            reshard=reshard,
            device_memory=device_memory,
        )
        if report is not None:
            save(report_of(verdict, config), report)
        typer.echo(verdict.to_json() if json else "\n".join(verdict.lines()))
        raise typer.Exit(verdict.exit_code)
    if json or device_memory is not None or report is not None:
        raise UserError("train: --json, --report and --device-memory belong to --dry-run")
    from ms_models.train.launch import starting

    raise typer.Exit(
        starting.launch(
            config,
            settings,
            resume=resume,
            resume_from=resume_from,
            reshard=reshard,
            stop_after=stop_after,
        )
    )


def _settings(**options: int | str | None) -> list[str]:
    # JSON is YAML, and quotes keep a host with a colon from being read as something else.
    return [f"launch.{name}={json.dumps(value)}" for name, value in options.items() if value is not None]


def _profiled(steps: str | None) -> list[str]:
    if steps is None:
        return []
    first, _, last = steps.removeprefix("steps=").partition(":")
    if not (steps.startswith("steps=") and first.isdecimal() and last.isdecimal()):
        raise UserError(f"--profile {steps}: must be like steps=5:8, the first and the last step to record")
    return [f"profile.steps=[{first}, {last}]"]
