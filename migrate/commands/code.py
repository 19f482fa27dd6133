"""`msmigrate scan`, `code` and `rule`: source conversion."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from migrate.commands.options import Directory, Force, Json, Page, ReportFile, Sarif, finish


def scan(
    repo: Annotated[Path, Directory],
    html: Page = None,
    sarif: Sarif = None,
    json: Json = False,
    report: ReportFile = None,
) -> None:
    """Say what a PyTorch repository uses and what `code` would do with it. Writes nothing."""
    from migrate.code import command
    from migrate.progress import shown

    finish(command.scan(repo, page=html, track=shown), json, report, sarif=(sarif, repo))


def code(
    repo: Annotated[Path, Directory],
    out: Annotated[Path, typer.Option("-o", "--out", help="Directory to write the converted repository to.")],
    target: Annotated[str, typer.Option(help="Spellings to prefer: portable (proved on CPU) or ascend.")] = "portable",
    verify: Annotated[bool, typer.Option("--verify", help="Import every converted module in a subprocess.")] = False,
    modules: Annotated[
        Path | None, typer.Option(help="Recipes of modules to build in both frameworks and compare; see docs/code.md.")
    ] = None,
    torch_python: Annotated[str | None, typer.Option(help="Python that has PyTorch, for --modules.")] = None,
    shard: Annotated[
        str | None, typer.Option(help="Cut layers over ranks: auto, or a plan file; see docs/sharding.md.")
    ] = None,
    unsafe: Annotated[
        bool, typer.Option("--unsafe", help="Also apply rules that may change what the program computes.")
    ] = False,
    html: Page = None,
    sarif: Sarif = None,
    force: Force = False,
    json: Json = False,
    report: ReportFile = None,
) -> None:
    """Convert a PyTorch repository to MindSpore."""
    from migrate.code import command
    from migrate.progress import shown

    report_body = command.convert(
        repo,
        out,
        target=target,
        verify=verify,
        modules=modules,
        torch_python=torch_python,
        shard=shard,
        page=html,
        unsafe=unsafe,
        force=force,
        track=shown,
    )
    finish(report_body, json, report, sarif=(sarif, repo))


def rule(
    code: Annotated[str | None, typer.Argument(help="Code of a rule, e.g. M121; without it all are listed.")] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print docs/code-rules.md.")] = False,
) -> None:
    """Say what a rule of the code converter means, and what to do where it is named."""
    from migrate.code import rules

    if markdown:
        typer.echo(rules.page(), nl=False)
    elif code is None:
        for entry in rules.RULES.values():
            typer.echo(f"{entry.code}  {'' if entry.safe else 'unsafe: '}{entry.title}")
    else:
        typer.echo(rules.text(rules.rule(code)))
