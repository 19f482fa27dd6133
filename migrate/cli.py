"""The `msmigrate` command line: options in, one call into a package, a rendered report and an exit code out.

Exit codes: 0 clean, 1 findings or mismatch, 2 could not run, 130 interrupted. Heavy imports stay inside the command
bodies, so that `msmigrate --help` answers at once.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from importlib.metadata import version
from typing import Annotated

import typer

from mappings.errors import UserError
from migrate.commands import (
    api,
    check,
    code,
    data,
    doctor,
    eval,
    export,
    ladder,
    logs,
    parity,
    plan,
    profile,
    registry,
    report,
    sweep,
    train,
    trouble,
    vocab,
    weights,
)

COULD_NOT_RUN = 2
INTERRUPTED = 130
VERBOSE = ("-v", "--verbose")

app = typer.Typer(rich_markup_mode=None, add_completion=False, no_args_is_help=True)
app.add_typer(weights.weights, name="weights")
app.add_typer(parity.parity, name="parity")
COMMANDS: dict[str, Callable[..., None]] = {
    "doctor": doctor.doctor,
    "scan": code.scan,
    "code": code.code,
    "rule": code.rule,
    "api": api.api,
    "check": check.check,
    "registry": registry.registry,
    "vocab": vocab.vocab,
    "data": data.data,
    "plan": plan.plan,
    "train": train.train,
    "ladder": ladder.ladder,
    "sweep": sweep.sweep,
    "logs": logs.logs,
    "trouble": trouble.trouble,
    "profile": profile.profile,
    "eval": eval.evaluate,
    "export": export.export,
    "report": report.report,
}
for name, command in COMMANDS.items():
    app.command(name)(command)


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
