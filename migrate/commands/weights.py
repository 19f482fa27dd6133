"""`msmigrate weights`: options in, one call into `migrate.weights`, a report out."""

from __future__ import annotations

import gc
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from migrate.commands.help import GroupedCommand
from migrate.commands.options import Directory, Json, ReportFile, finish
from migrate.commands.weights_options import (
    HOW,
    SOURCE,
    TARGET,
    Allow,
    Arguments,
    AsCkpt,
    Budget,
    Config,
    Container,
    Crc,
    Dp,
    DryRun,
    Dtype,
    Ending,
    Ep,
    Epoch,
    FamilyName,
    Force,
    Key,
    Mindformers,
    Module,
    Multiple,
    OfClass,
    Out,
    Pp,
    RedundancyRemoved,
    RemoveRedundancy,
    Resume,
    ShardSize,
    Source,
    Spelled,
    Spelling,
    Step,
    Strategies,
    Table,
    Threads,
    To,
    ToStrategy,
    Tp,
    Vpp,
    WeightsOnly,
    Zero,
)

if TYPE_CHECKING:
    from mappings.layout import ParallelLayout
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


def _options(budget: int, threads: int | None, force: bool, resume: bool, dry_run: bool = False) -> dict[str, Any]:
    from migrate.progress import shown

    options: dict[str, Any] = {"memory_budget": budget << 20, "force": force, "resume": resume, "track": shown}
    if dry_run:
        options["dry_run"] = True
    if threads is not None:
        options["threads"] = threads
    return options


def _layout(tp: int, pp: int, vpp: int, dp: int, ep: int, zero: int, vocab_multiple: int) -> ParallelLayout:
    from mappings.layout import ParallelLayout

    return ParallelLayout(tp=tp, pp=pp, vpp=vpp, dp=dp, ep=ep, zero=zero, vocab_multiple=vocab_multiple)


def _hints(
    container: str | None,
    family: str | None = None,
    config: Path | None = None,
    spelling: str | None = None,
    key: str | None = None,
    strategy: Path | None = None,
    ending: str | None = None,
    redundancy_removed: bool = False,
    allow: list[str] | None = None,
) -> Hints:
    from migrate.weights.opening import Hints

    return Hints(container, family, config, key, spelling, strategy, ending, redundancy_removed, tuple(allow or ()))


@weights.command("convert", cls=GroupedCommand)
def weights_convert(
    source: Source,
    out: Out,
    container: Container = None,
    family: FamilyName = None,
    config: Config = None,
    from_spelling: Spelled = None,
    allow: Allow = None,
    key: Key = None,
    strategy: Strategies = None,
    ending: Ending = None,
    redundancy_removed: RedundancyRemoved = False,
    to: To = "sharded",
    tp: Tp = 1,
    pp: Pp = 1,
    vpp: Vpp = 1,
    dp: Dp = 1,
    ep: Ep = 1,
    zero: Zero = 0,
    vocab_multiple: Multiple = 1,
    spelling: Spelling = "hf",
    dtype: Dtype = None,
    weights_only: WeightsOnly = False,
    max_shard_size: ShardSize = None,
    to_strategy: ToStrategy = None,
    crc: Crc = False,
    as_ckpt: AsCkpt = False,
    remove_redundancy: RemoveRedundancy = False,
    mindformers: Mindformers = None,
    epoch: Epoch = 1,
    step: Step = 0,
    table: Table = None,
    module: Module = None,
    of_class: OfClass = None,
    arguments: Arguments = None,
    memory_budget: Budget = 1024,
    threads: Threads = None,
    dry_run: DryRun = False,
    resume: Resume = False,
    force: Force = False,
    json: Json = False,
    report: ReportFile = None,
) -> None:
    """Write a checkpoint in another container, spelling or parallel layout."""
    from mappings.errors import UserError
    from migrate.weights import command
    from migrate.weights.destinations import Destination

    options = _options(memory_budget, threads, force, resume, dry_run)
    destination = Destination(
        to,
        _layout(tp, pp, vpp, dp, ep, zero, vocab_multiple),
        spelling,
        to_strategy,
        max_shard_size,
        crc,
        as_ckpt,
        remove_redundancy,
        mindformers,
        epoch,
        step,
    )
    hints = _hints(container, family, config, from_spelling, key, strategy, ending, redundancy_removed, allow)
    if family == "none":
        if table is None:
            raise UserError("--family none needs --table, the weights_table.json of the converted repository")
        if unused := [*_given(destination), *_given(replace(hints, family=None, key=None))]:
            raise UserError(f"--family none writes the tensors of the converted cells; it has no use for {unused[0]}")
        if dtype is not None or weights_only:
            raise UserError("--family none keeps every tensor as it is; leave --dtype and --weights-only out")
        given = _object(arguments)
        result = command.convert_table(
            source, out, table, module=module, of_class=of_class, arguments=given, key=key, **options
        )
        finish(result, json, report)
    if table or module or of_class or arguments:
        raise UserError("--table, --module, --class and --arguments are for --family none")
    result = command.convert(
        source, out, destination=destination, hints=hints, cast=dtype, weights_only=weights_only, **options
    )
    finish(result, json, report)


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
def weights_reshard(
    source: Annotated[Path, Directory],
    out: Out,
    tp: Tp = 1,
    pp: Pp = 1,
    vpp: Vpp = 1,
    dp: Dp = 1,
    ep: Ep = 1,
    zero: Zero = 0,
    vocab_multiple: Multiple = 1,
    allow: Allow = None,
    memory_budget: Budget = 1024,
    threads: Threads = None,
    dry_run: DryRun = False,
    resume: Resume = False,
    force: Force = False,
    json: Json = False,
    report: ReportFile = None,
) -> None:
    """Take a checkpoint of a run to another parallel layout, optimizer state included."""
    from migrate.weights import command

    layout = _layout(tp, pp, vpp, dp, ep, zero, vocab_multiple)
    options = _options(memory_budget, threads, force, resume, dry_run)
    hints = _hints(None, allow=allow)
    finish(command.reshard(source, out, layout=layout, hints=hints, **options), json, report)


@weights.command("export", cls=GroupedCommand)
def weights_export(
    source: Source,
    out: Annotated[Path, typer.Option("-o", "--out", help="Hugging Face directory to write.", rich_help_panel=TARGET)],
    max_shard_size: Annotated[
        int | None,
        typer.Option(min=1, help="Bytes per file; the files of the original by default.", rich_help_panel=TARGET),
    ] = None,
    dtype: Dtype = None,
    container: Container = None,
    family: FamilyName = None,
    config: Config = None,
    from_spelling: Spelled = None,
    allow: Allow = None,
    strategy: Strategies = None,
    memory_budget: Budget = 1024,
    threads: Threads = None,
    resume: Resume = False,
    force: Force = False,
    json: Json = False,
    report: ReportFile = None,
) -> None:
    """Turn any checkpoint (converted, or saved by a run) into a Hugging Face directory."""
    from migrate.weights import command

    hints = _hints(container, family, config, from_spelling, None, strategy, allow=allow)
    options = _options(memory_budget, threads, force, resume)
    result = command.export(source, out, max_shard_size=max_shard_size, hints=hints, cast=dtype, **options)
    finish(result, json, report)


@weights.command("verify", cls=GroupedCommand)
def weights_verify(
    path: Source,
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
    container: Container = None,
    config: Config = None,
    from_spelling: Spelled = None,
    allow: Allow = None,
    strategy: Strategies = None,
    json: Json = False,
    report: ReportFile = None,
) -> None:
    """Check a checkpoint: digests, headers, copies, and with --source every byte."""
    from migrate.progress import shown
    from migrate.weights import command
    from migrate.weights.opening import Hints

    hints = _hints(container, None, config, from_spelling, None, strategy)
    allowing = Hints(allow=tuple(allow or ()))
    result = command.verify(path, source=source, hints=hints, source_hints=allowing, cast=cast, track=shown)
    finish(result, json, report)


@weights.command("diff", cls=GroupedCommand)
def weights_diff(
    first: Source,
    second: Source,
    first_from: Annotated[
        str | None,
        typer.Option("--first-from", help="Container of the first, if unclear.", rich_help_panel=SOURCE),
    ] = None,
    second_from: Annotated[
        str | None, typer.Option("--second-from", help="Container of the second.", rich_help_panel=SOURCE)
    ] = None,
    config: Config = None,
    json: Json = False,
    report: ReportFile = None,
) -> None:
    """Compare two checkpoints of one model, parameter by parameter, whatever their layouts."""
    from migrate.progress import shown
    from migrate.weights import command
    from migrate.weights.opening import kind_of

    def hints(path: Path, container: str | None) -> Hints:
        own = (container or kind_of(path)) in ("hf", "sharded")
        return _hints(container, None, None if own else config)

    result = command.diff(
        first, second, first_hints=hints(first, first_from), second_hints=hints(second, second_from), track=shown
    )
    finish(result, json, report, rows=True)


@weights.command("inspect")
def weights_inspect(
    path: Annotated[Path, typer.Argument(exists=True)], json: Json = False, report: ReportFile = None
) -> None:
    """List names, shapes, dtypes, sizes, NaN/Inf counts, ranges and a histogram of magnitudes of every tensor."""
    from migrate.progress import shown
    from migrate.weights import command

    finish(command.inspect(path, track=shown), json, report, rows=True)
