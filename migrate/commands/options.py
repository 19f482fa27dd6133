"""What the commands of the command line have in common: their options, and how they end with a report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from migrate.report import Report

Json = Annotated[bool, typer.Option("--json", help="Print the report as JSON on standard output, nothing else.")]
ReportFile = Annotated[Path | None, typer.Option("--report", help="Also write the report as JSON to this file.")]
Sarif = Annotated[Path | None, typer.Option("--sarif", help="Also write the findings in SARIF 2.1.0 to this file.")]
Page = Annotated[
    Path | None, typer.Option("--html", help="Also write an HTML page: the files side by side, filters, statuses.")
]
Force = Annotated[bool, typer.Option("--force", help="Replace the output if it exists.")]
Directory = typer.Argument(exists=True, file_okay=False)
File = typer.Argument(exists=True, dir_okay=False)


def finish(
    report: Report,
    json: bool,
    report_file: Path | None,
    *,
    rows: bool = False,
    sarif: tuple[Path | None, Path] | None = None,
) -> None:
    """Shows or prints a report, saves it if asked, and ends with its exit code.

    `sarif` is the log to write and the directory that the files of the findings are relative to.
    """
    if sarif is not None and sarif[0] is not None:
        from migrate.report.sarif import write_sarif

        write_sarif(report, sarif[0], sarif[1])
    if report_file is not None:
        save(report, report_file)
    if json:
        typer.echo(report.to_json())
    else:
        from rich.console import Console

        from migrate.report.terminal import render

        render(report, Console(), rows=rows)
    raise typer.Exit(report.exit_code)


def save(report: Report, file: Path) -> None:
    """Writes a report for `msmigrate report`; the directory is made."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(report.to_json() + "\n", encoding="utf-8")


def print_facts(facts: dict[str, object], json: bool) -> None:
    """Shows figures by name, or prints them as JSON."""
    if json:
        import json as json_module

        typer.echo(json_module.dumps(facts, indent=2))
        return
    for name, value in facts.items():
        if isinstance(value, dict):
            typer.echo(f"{name}:")
            for key, amount in value.items():
                typer.echo(f"  {key:>16} {amount:>12,}")
        elif value != []:
            typer.echo(f"{name}: {value}")
