"""`msmigrate parity`: its stages, curves and dumps."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mappings.errors import UserError
from migrate.commands.options import Directory, File, Json, ReportFile, finish

if TYPE_CHECKING:
    from migrate.report import Report

Html = Annotated[Path | None, typer.Option("--html", help="Also write an HTML page that needs nothing else.")]
parity = typer.Typer(no_args_is_help=True, help="Prove that the MindSpore model is the PyTorch model.")


@parity.command("model")
def parity_model(
    directory: Annotated[Path, Directory],
    stages: Annotated[
        str, typer.Option(help="Stages to run, in order: W weights, F forward, L loss, G gradients, U updates.")
    ] = ("W,F,L,G,U"),
    seed: Annotated[int, typer.Option(help="Seed of the batch.")] = 0,
    keep_going: Annotated[bool, typer.Option("--keep-going", help="Go on after a failing stage.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Judge every module alone even if stage F passes.")] = False,
    curve_steps: Annotated[
        int, typer.Option(min=0, help="Then train both sides so many steps (stage C), e.g. 20; slow.")
    ] = 0,
    candidate: Annotated[
        Path | None, typer.Option(exists=True, file_okay=False, help="What MindSpore loads instead of the directory.")
    ] = None,
    layout: Annotated[
        str | None, typer.Option(help="Ranks of the MindSpore side: tp=2,pp=2,sequence_parallel=true, ...")
    ] = None,
    state: Annotated[
        str, typer.Option(help="Weights: as stored, or a copy moved by noise: init (small), trained (sharp attention).")
    ] = "stored",
    json: Json = False,
    report: ReportFile = None,
    html: Html = None,
) -> None:
    """Compare a Hugging Face model in PyTorch with its ms_models cell, element by element."""
    from migrate.parity import command
    from migrate.parity.explain.drawing import BACKWARD, FORWARD, draw
    from migrate.parity.explain.failing import MODULES
    from migrate.progress import shown

    names = [name.strip() for name in stages.split(",")]
    result = command.model(
        directory,
        stages=names,
        seed=seed,
        keep_going=keep_going,
        force=force,
        curve_steps=curve_steps,
        candidate=candidate,
        layout=layout,
        state=state,
        track=shown,
    )
    _write_page(result, html, directory.resolve().name)
    for stage, titles in (("F", FORWARD), ("G", BACKWARD)):
        if not json and MODULES[stage] in result.facts:
            typer.echo("\n".join([*draw(result.facts[MODULES[stage]], titles), ""]))
    finish(result, json, report)


@parity.command("code")
def parity_code(
    converted: Annotated[Path, Directory],
    original: Annotated[
        Path | None, typer.Option(help="What was converted; by default found by the name in the report.")
    ] = None,
    modules: Annotated[Path | None, typer.Option(help="Recipes of modules to build; see docs/code.md.")] = None,
    stages: Annotated[
        str | None,
        typer.Option(
            help="Some of W weights, F forward, L loss, G gradients, U updates; U by default where a recipe names its "
            "optimizer, the others always."
        ),
    ] = None,
    state: Annotated[str, typer.Option(help="What the weights are like: init, or trained (larger).")] = "init",
    sketch: Annotated[bool, typer.Option("--sketch", help="Print a skeleton of recipes and stop.")] = False,
    torch_python: Annotated[str | None, typer.Option(help="Python that has PyTorch.")] = None,
    keep_going: Annotated[bool, typer.Option("--keep-going", help="Go on after a failing stage.")] = False,
    json: Json = False,
    report: ReportFile = None,
    html: Html = None,
) -> None:
    """Compare a converted repository with its original: modules of both, from the same weights."""
    from migrate.parity.repository import command
    from migrate.parity.repository.sketch import sketch_of
    from migrate.progress import shown

    if sketch:
        typer.echo(sketch_of(converted, original), nl=False)
        return
    result = command.code(
        converted,
        original=original,
        modules=modules,
        stages=None if stages is None else [name.strip() for name in stages.split(",")],
        state=state,
        torch_python=torch_python,
        keep_going=keep_going,
        track=shown,
    )
    _write_page(result, html, converted.resolve().name)
    finish(result, json, report)


@parity.command("dumps")
def parity_dumps(
    reference: Annotated[Path, Directory],
    candidate: Annotated[Path, Directory],
    names: Annotated[
        Path | None, typer.Option("--map", exists=True, dir_okay=False, help="YAML: reference name to candidate name.")
    ] = None,
    allow: Annotated[list[str] | None, typer.Option(help="A name that only one side has. Repeatable.")] = None,
    stages: Annotated[str | None, typer.Option(help="Some of W,F,L,G,U; all of the reference by default.")] = None,
    noise: Annotated[
        Path | None,
        typer.Option(exists=True, file_okay=False, help="Second dump of the reference's script, in fp64."),
    ] = None,
    keep_going: Annotated[bool, typer.Option("--keep-going", help="Go on after a failing stage.")] = False,
    json: Json = False,
    report: ReportFile = None,
    html: Html = None,
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
        noise=noise,
        keep_going=keep_going,
    )
    _write_page(result, html, candidate.resolve().name)
    finish(result, json, report)


@parity.command("helper")
def parity_helper(
    framework: Annotated[str, typer.Argument(help="torch or mindspore.")],
) -> None:
    """Print a class to paste into a training script; it writes what `parity dumps` compares."""
    if framework not in ("torch", "mindspore"):
        raise UserError(f"parity helper: {framework!r} is none of torch, mindspore")
    source = Path(__file__).parents[1] / "parity" / "paste" / f"{framework}_capture.py"
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
    html: Html = None,
) -> None:
    """Compare two training curves (JSONL files with a record per step)."""
    from migrate.parity import command

    result = command.curve(
        reference, candidate, first_rtol=first_rtol, last_rtol=last_rtol, steps=steps, key=key, noise=noise or ()
    )
    _write_page(result, html, candidate.resolve().parent.name)
    finish(result, json, report)


def _write_page(result: Report, html: Path | None, name: str) -> None:
    if html is not None:
        from migrate.report.html import render

        render([result], html, title=f"Parity of {name}")
