"""The `msmigrate` command line: options in, one call into a package, a rendered report and an exit code out.

Exit codes: 0 clean, 1 findings or mismatch, 2 could not run, 130 interrupted. Heavy imports stay inside the command
bodies, so that `msmigrate --help` answers at once.
"""

from __future__ import annotations

import sys
import traceback
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer

from mappings.errors import UserError
from migrate.cli_check import check
from migrate.cli_options import Directory, File, Force, Json, Page, ReportFile, Sarif, finish
from migrate.cli_registry import registry
from migrate.cli_vocab import vocab
from migrate.cli_weights import weights
from migrate.runs_cli import data, eval, export, ladder, logs, plan, profile, sweep, train, trouble

COULD_NOT_RUN = 2
INTERRUPTED = 130
VERBOSE = ("-v", "--verbose")

app = typer.Typer(rich_markup_mode=None, add_completion=False, no_args_is_help=True)
parity = typer.Typer(no_args_is_help=True, help="Prove that the MindSpore model is the PyTorch model.")
app.add_typer(weights, name="weights")
app.add_typer(parity, name="parity")
RUNS = (
    data.data,
    plan.plan,
    ladder.ladder,
    sweep.sweep,
    train.train,
    logs.logs,
    trouble.trouble,
    profile.profile,
    export.export,
)
for command in RUNS:
    app.command()(command)
app.command("eval")(eval.evaluate)
app.command()(check)
app.command()(registry)
app.command()(vocab)


def _version(show: bool) -> None:
    if show:
        typer.echo(f"msmigrate {version('msmigrate')}")
        raise typer.Exit


@app.callback()
def _root(
    verbose: Annotated[bool, typer.Option(*VERBOSE, help="Show the traceback of an error.")] = False,
    show_version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Move LLM code, checkpoints and training runs from PyTorch / Hugging Face to native MindSpore."""


@app.command()
def doctor(
    collective: Annotated[bool, typer.Option("--collective", help="Also run an all-reduce on two processes.")] = False,
    json: Json = False,
    report: ReportFile = None,
) -> None:
    """Check this machine: versions, a minimal operation, devices, the launcher."""
    from migrate.check import doctor as body

    finish(body.doctor(collective=collective), json, report)


@app.command()
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


@app.command()
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


@app.command()
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


@app.command()
def api(
    name: Annotated[str | None, typer.Argument(help="A torch name: torch.arange, F.gelu, Tensor.view.")] = None,
    coverage: Annotated[bool, typer.Option("--coverage", help="Print how much of torch the table covers.")] = False,
    json: Json = False,
) -> None:
    """Say what a torch name becomes in MindSpore, and what proves it."""
    import json as json_module

    if coverage == (name is not None):
        raise UserError("api: give either a torch name or --coverage")
    if name is None:
        from migrate.api import coverage as tables

        found = tables.Coverage().tables()
        typer.echo(json_module.dumps(found, indent=2) if json else tables.text(found))
        return
    from migrate.api import names

    described = names.describe(name)
    typer.echo(json_module.dumps(described, indent=2) if json else names.text(described))
    raise typer.Exit(described["exit_code"])


@parity.command("model")
def parity_model(
    directory: Annotated[Path, Directory],
    stages: Annotated[
        str, typer.Option(help="Stages to run, in order: W weights, F forward, L loss, G gradients, U updates.")
    ] = ("W,F,L,G,U"),
    seed: Annotated[int, typer.Option(help="Seed of the batch.")] = 0,
    keep_going: Annotated[bool, typer.Option("--keep-going", help="Go on after a failing stage.")] = False,
    json: Json = False,
    report: ReportFile = None,
) -> None:
    """Compare a Hugging Face model in PyTorch with its ms_models cell, element by element."""
    from migrate.parity import command
    from migrate.progress import shown

    names = [name.strip() for name in stages.split(",")]
    finish(command.model(directory, stages=names, seed=seed, keep_going=keep_going, track=shown), json, report)


@parity.command("dumps")
def parity_dumps(
    reference: Annotated[Path, Directory],
    candidate: Annotated[Path, Directory],
    names: Annotated[
        Path | None, typer.Option("--map", exists=True, dir_okay=False, help="YAML: reference name to candidate name.")
    ] = None,
    allow: Annotated[list[str] | None, typer.Option(help="A name that only one side has. Repeatable.")] = None,
    stages: Annotated[str | None, typer.Option(help="Some of W,F,L,G,U; all of the reference by default.")] = None,
    keep_going: Annotated[bool, typer.Option("--keep-going", help="Go on after a failing stage.")] = False,
    json: Json = False,
    report: ReportFile = None,
) -> None:
    """Compare what two training scripts captured, maybe on two machines (see `parity helper`)."""
    from migrate.parity import dumps
    from migrate.parity.matching import read_map

    result = dumps.dumps(
        reference,
        candidate,
        stages=None if stages is None else [name.strip() for name in stages.split(",")],
        names=None if names is None else read_map(names),
        allow=allow or (),
        keep_going=keep_going,
    )
    finish(result, json, report)


@parity.command("helper")
def parity_helper(
    framework: Annotated[str, typer.Argument(help="torch or mindspore.")],
) -> None:
    """Print a class to paste into a training script; it writes what `parity dumps` compares."""
    if framework not in ("torch", "mindspore"):
        raise UserError(f"parity helper: {framework!r} is none of torch, mindspore")
    source = Path(__file__).parent / "parity" / "paste" / f"{framework}_capture.py"
    typer.echo(source.read_text(encoding="utf-8"), nl=False)


@parity.command("curve")
def parity_curve(
    reference: Annotated[Path, File],
    candidate: Annotated[Path, File],
    first_rtol: Annotated[float, typer.Option(help="Relative tolerance at the first step.")] = 1e-6,
    last_rtol: Annotated[float, typer.Option(help="Relative tolerance at the last step.")] = 1e-4,
    steps: Annotated[int | None, typer.Option(min=1, help="Compare only this many steps.")] = None,
    key: Annotated[str, typer.Option(help="Field to compare.")] = "loss",
    noise: Annotated[
        list[Path] | None,
        typer.Option(exists=True, dir_okay=False, help="The reference again, summed in another order. Repeatable."),
    ] = None,
    json: Json = False,
    report: ReportFile = None,
) -> None:
    """Compare two training curves (JSONL files with a record per step)."""
    from migrate.parity import command

    result = command.curve(
        reference, candidate, first_rtol=first_rtol, last_rtol=last_rtol, steps=steps, key=key, noise=noise or ()
    )
    finish(result, json, report)


@app.command("report")
def report_(
    inputs: Annotated[list[str], typer.Argument(help="Report JSON, run directories, or NAME=losses.jsonl.")],
    out: Annotated[Path, typer.Option("-o", "--out", help="HTML file to write.")],
    title: Annotated[str, typer.Option(help="Title of the page.")] = "msmigrate",
) -> None:
    """Put reports and loss curves on one HTML page."""
    from migrate.report import command

    typer.echo(command.report(inputs, out, title=title))


def main(argv: list[str] | None = None) -> int:
    """Entry point of `msmigrate`; returns the exit code. `-v` is accepted before and after the command."""
    args = sys.argv[1:] if argv is None else argv
    verbose = any(flag in args for flag in VERBOSE)
    args = [arg for arg in args if arg not in VERBOSE]
    try:
        exit_code = app(args, prog_name="msmigrate", standalone_mode=False) or 0
    except Exception as error:  # noqa: BLE001 - the last frame: reported in one line, or whole with -v
        if type(error).__name__ == "NoArgsIsHelpError":
            error.show()  # type: ignore[attr-defined]
            return COULD_NOT_RUN
        if verbose:
            traceback.print_exc()
        print(f"msmigrate: error: {' '.join(_explain(error).split())}", file=sys.stderr)
        return COULD_NOT_RUN
    if exit_code == INTERRUPTED:  # typer turns Ctrl-C into this
        print("msmigrate: interrupted", file=sys.stderr)
    return exit_code


def _explain(error: Exception) -> str:
    """One line for the user: what happened, and where there is something to do, what."""
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, typer.TyperException):  # unknown option, missing argument, wrong path
        return _usage_message(error)
    if isinstance(error, ModuleNotFoundError):
        return _missing_module(error)
    return f"internal error ({type(error).__name__}: {error}); run again with -v and report the traceback"


def _usage_message(error: typer.TyperException) -> str:
    message = error.format_message() if hasattr(error, "format_message") else str(error)
    context = getattr(error, "ctx", None)
    return f"{message.rstrip('.')} (see `{context.command_path} --help`)" if context is not None else message


def _missing_module(error: ModuleNotFoundError) -> str:
    extra = {"torch": "parity", "transformers": "hf", "tokenizers": "hf", "matplotlib": "viz"}.get(error.name or "")
    hint = f'; install it with: pip install "msmigrate[{extra}]"' if extra else ""
    return f"module {error.name!r} is missing{hint}"


if __name__ == "__main__":
    sys.exit(main())
