"""`msmigrate weights`: options in, one call into `migrate.weights`, a report out."""

from __future__ import annotations

import gc
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from migrate.commands.grouped_options import grouped
from migrate.commands.help import GroupedCommand
from migrate.commands.options import Directory
from migrate.commands.weights_groups import (
    Described,
    DescribedFiles,
    DescribedModel,
    Layout,
    PlannedWork,
    Shown,
    Work,
    Written,
)
from migrate.commands.weights_options import (
    HOW,
    SOURCE,
    TARGET,
    Allow,
    Arguments,
    Config,
    Dtype,
    Module,
    OfClass,
    Out,
    Source,
    Table,
)

if TYPE_CHECKING:
    from migrate.weights.destinations import Destination
    from migrate.weights.opening import Hints

weights = typer.Typer(
    no_args_is_help=True, help="Convert, reshard, export, verify, compare and inspect checkpoints of any layout."
)


@weights.callback()
def _begin(context: typer.Context) -> None:
    # Plans are tables and small tuples without cycles: looking for cycles takes a quarter of the planning.
    gc.disable()
    context.call_on_close(gc.enable)


@weights.command("convert", cls=GroupedCommand)
@grouped
def weights_convert(
    *,
    source: Source,
    out: Out,
    described: DescribedFiles,
    written: Written,
    layout: Layout,
    table: Table = None,
    module: Module = None,
    of_class: OfClass = None,
    arguments: Arguments = None,
    work: PlannedWork,
    shown: Shown,
) -> None:
    """Write a checkpoint in another container, spelling or parallel layout."""
    from mappings.errors import UserError
    from migrate.weights import command

    destination, hints = written.destination(layout.parallel()), described.hints()
    if hints.family == "none":
        if table is None:
            raise UserError("--family none needs --table, the weights_table.json of the converted repository")
        if unused := [*_given(destination), *_given(replace(hints, family=None, key=None))]:
            raise UserError(f"--family none writes the tensors of the converted cells; it has no use for {unused[0]}")
        if written.dtype is not None or written.weights_only:
            raise UserError("--family none keeps every tensor as it is; leave --dtype and --weights-only out")
        given, key = _object(arguments), hints.key
        result = command.convert_table(
            source, out, table, module=module, of_class=of_class, arguments=given, key=key, **work.options()
        )
        shown.finish(result)
    if table or module or of_class or arguments:
        raise UserError("--table, --module, --class and --arguments are for --family none")
    more = {"cast": written.dtype, "weights_only": written.weights_only, **work.options()}
    shown.finish(command.convert(source, out, destination=destination, hints=hints, **more))


def _given(options: Destination | Hints) -> list[str]:
    """What of a group of options is not as it is by itself."""
    names = {"container": "another container", "layout": "a parallel layout", "spelling": "another spelling"}
    usual = type(options)()
    return [
        names.get(field.name, f"--{field.name.replace('_', '-')}")
        for field in fields(options)
        if getattr(options, field.name) != getattr(usual, field.name)
    ]


def _object(text: str | None) -> dict[str, Any]:
    """A JSON object from the command line."""
    import json

    from mappings.errors import UserError

    try:
        value = json.loads(text or "{}")
    except ValueError as error:
        raise UserError(f"--arguments: not valid JSON ({error})") from error
    if not isinstance(value, dict):
        raise UserError(f"--arguments: must be a JSON object, found {type(value).__name__}")
    return value


@weights.command("reshard", cls=GroupedCommand)
@grouped
def weights_reshard(
    *,
    source: Annotated[Path, Directory],
    out: Out,
    layout: Layout,
    allow: Allow = None,
    work: PlannedWork,
    shown: Shown,
) -> None:
    """Take a checkpoint of a run to another parallel layout, optimizer state included."""
    from migrate.weights import command

    hints = Described(allow=allow).hints()
    shown.finish(command.reshard(source, out, layout=layout.parallel(), hints=hints, **work.options()))


@weights.command("export", cls=GroupedCommand)
@grouped
def weights_export(
    source: Source,
    out: Annotated[Path, typer.Option("-o", "--out", help="Hugging Face directory to write.", rich_help_panel=TARGET)],
    described: DescribedModel,
    work: Work,
    shown: Shown,
    max_shard_size: Annotated[
        int | None,
        typer.Option(min=1, help="Bytes per file; the files of the original by default.", rich_help_panel=TARGET),
    ] = None,
    dtype: Dtype = None,
) -> None:
    """Turn any checkpoint (converted, or saved by a run) into a Hugging Face directory."""
    from migrate.weights import command

    options = {"max_shard_size": max_shard_size, "hints": described.hints(), "cast": dtype, **work.options()}
    shown.finish(command.export(source, out, **options))


@weights.command("verify", cls=GroupedCommand)
@grouped
def weights_verify(
    path: Source,
    described: Described,
    shown: Shown,
    source: Annotated[
        Path | None,
        typer.Option(exists=True, help="Original to derive every tensor from again.", rich_help_panel=SOURCE),
    ] = None,
    cast: Annotated[
        bool,
        typer.Option(
            "--cast",
            help="Accept another dtype than the source's, if every value is rounded rightly.",
            rich_help_panel=HOW,
        ),
    ] = False,
) -> None:
    """Check a checkpoint: digests, headers, copies, and with --source every byte."""
    from migrate.progress import shown as track
    from migrate.weights import command
    from migrate.weights.opening import Hints

    # What may be left out is said of the original.
    hints, allowing = replace(described, allow=None).hints(), Hints(allow=tuple(described.allow or ()))
    shown.finish(command.verify(path, source=source, hints=hints, source_hints=allowing, cast=cast, track=track))


@weights.command("diff", cls=GroupedCommand)
@grouped
def weights_diff(
    first: Source,
    second: Source,
    shown: Shown,
    first_from: Annotated[
        str | None,
        typer.Option("--first-from", help="Container of the first, if unclear.", rich_help_panel=SOURCE),
    ] = None,
    second_from: Annotated[
        str | None, typer.Option("--second-from", help="Container of the second.", rich_help_panel=SOURCE)
    ] = None,
    config: Config = None,
) -> None:
    """Compare two checkpoints of one model, parameter by parameter, whatever their layouts."""
    from migrate.progress import shown as track
    from migrate.weights import command
    from migrate.weights.opening import kind_of

    def hints(path: Path, container: str | None) -> Hints:
        own = (container or kind_of(path)) in ("hf", "sharded")
        return Described(container, None if own else config).hints()

    sides = {"first_hints": hints(first, first_from), "second_hints": hints(second, second_from)}
    shown.finish(command.diff(first, second, **sides, track=track), rows=True)


@weights.command("inspect")
@grouped
def weights_inspect(path: Annotated[Path, typer.Argument(exists=True)], shown: Shown) -> None:
    """List names, shapes, dtypes, sizes, NaN/Inf counts, ranges and a histogram of magnitudes of every tensor."""
    from migrate.progress import shown as track
    from migrate.weights import command

    shown.finish(command.inspect(path, track=track), rows=True)
