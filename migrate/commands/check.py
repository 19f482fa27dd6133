"""`msmigrate check`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from migrate.commands.options import Directory, Json, ReportFile, Sarif, finish

if TYPE_CHECKING:
    from migrate.check.data.data_sets import Readers
    from migrate.report import Report


def _readers(field: str) -> Readers:
    """What opens data: of `ms_models`, which the checks do not know."""
    from migrate.check.data.data_sets import Document, Readers
    from ms_models.data.sampling import sample_documents, sample_rows

    def documents(path: Path, count: int) -> Iterator[Document]:
        for document in sample_documents([path], count, field=field):
            yield document.key, document.text, document.problem

    return Readers(sample_rows, documents)


def _refusal(run: Path | None) -> str | None:
    """Why the trainer, which alone knows all fields, refuses a run configuration."""
    if run is None:
        return None
    from mappings.errors import UserError
    from ms_models.train.config import load

    try:
        load(run)
    except UserError as error:
        return str(error)
    return None


def _judge_memory(result: Report, model_dir: Path, run: Path, gib: float) -> None:
    """Adds whether the fullest rank of a run fits into a device: the estimate of `train --dry-run --device-memory`."""
    from migrate.check.codes import finding
    from migrate.commands.dry_run import dry_run
    from migrate.report import Stage, Verdict

    checks = dry_run(run, [f"model.path={model_dir.absolute()}"], device_memory=gib).checks
    found = next((check for check in checks if check.name == "memory"), None)
    if found is None or found.verdict == "skipped":
        reason = "the run cannot be judged, see its findings" if found is None else found.message
        result.stages.append(Stage("memory of a rank", Verdict.SKIPPED, reason))
        return
    fits = found.verdict == "pass"
    result.stages.append(Stage("memory of a rank", Verdict.PASS if fits else Verdict.FAIL, found.message, 1))
    if not fits:
        result.findings.append(finding("C608", found.message, file=run.name, field="layout"))


def check(
    model_dir: Annotated[Path, Directory],
    run: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="Run configuration to check the model against.")
    ] = None,
    device_memory: Annotated[
        float | None, typer.Option(min=0.01, help="With --run: GiB of a device; the fullest rank must fit.")
    ] = None,
    data: Annotated[
        list[Path] | None,
        typer.Option(exists=True, help="Prepared data, or text (directory or file): look into it, too. Repeatable."),
    ] = None,
    text_field: Annotated[
        str, typer.Option(help="With --data: name of the text in records; column of tables.")
    ] = "text",
    repo: Annotated[
        Path | None, typer.Option(exists=True, help="Repository of the model's code: also check its model types.")
    ] = None,
    run_remote_code: Annotated[
        list[str] | None,
        typer.Option(
            "--run-remote-code",
            metavar="CLASS_OR_FILE",
            help="Run this class (or file) of auto_map, in a process without network. Repeatable.",
        ),
    ] = None,
    fix: Annotated[bool, typer.Option("--fix", help="Show the edits that end findings with one right value.")] = False,
    write: Annotated[bool, typer.Option("--write", help="With --fix: make the edits.")] = False,
    html: Annotated[Path | None, typer.Option("--html", help="Also write the report as an HTML page.")] = None,
    sarif: Sarif = None,
    json: Json = False,
    report: ReportFile = None,
) -> None:
    """Check a model directory before a run: vocabulary, special ids, positions, tensors, code, layout."""
    from migrate.check import command

    if device_memory is not None and run is None:
        from mappings.errors import UserError

        raise UserError("check: --device-memory is about a run: give --run RUN, too")
    if fix:
        diff, codes = command.fix(model_dir, run=run, write=write)
        typer.echo(diff, nl=False)
        done = "ended" if write else "would end; --write does it"
        typer.echo(f"{', '.join(codes)}: {done}" if codes else "no finding here that an edit would end")
        return
    readers = _readers(text_field) if data else None
    result = command.check(
        model_dir,
        run=run,
        data=data or (),
        readers=readers,
        remote_code_of=run_remote_code or (),
        refused=_refusal(run),
    )
    if device_memory is not None and run is not None:
        _judge_memory(result, model_dir, run, device_memory)
    if repo is not None:
        from dataclasses import replace

        from migrate.check.registry.command import registry
        from migrate.report import Verdict

        found = registry(repo, models=[model_dir])
        result.findings += found.findings
        # A repository without model types is nothing against the model directory.
        result.stages += [
            replace(stage, verdict=Verdict.SKIPPED) if stage.verdict is Verdict.COULD_NOT_RUN else stage
            for stage in found.stages
        ]
        result.rules |= found.rules
    if html is not None:
        from migrate.report.html import render

        typer.echo(render([result], html, title=f"check {model_dir.name}"), err=True)
    finish(result, json, report, sarif=(sarif, model_dir))
