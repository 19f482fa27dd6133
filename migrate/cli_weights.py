"""`msmigrate weights`: options in, one call into `migrate.weights`, a report out."""

from __future__ import annotations

import gc
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from migrate.cli_options import Directory, Force, Json, ReportFile, finish

if TYPE_CHECKING:
    from mappings.layout import ParallelLayout
    from migrate.weights.destinations import Destination
    from migrate.weights.opening import Hints

weights = typer.Typer(
    no_args_is_help=True, help="Convert, reshard, export, verify, compare and inspect checkpoints of any layout."
)


@weights.callback()
def _begin() -> None:
    # Plans are tables and small tuples without cycles: looking for cycles takes a quarter of the planning.
    gc.disable()


Source = Annotated[Path, typer.Argument(exists=True, help="Checkpoint of any container.")]
Out = Annotated[Path, typer.Option("-o", "--out", help="Directory to write.")]
Tp = Annotated[int, typer.Option(min=1, help="Tensor-parallel ranks.")]
Pp = Annotated[int, typer.Option(min=1, help="Pipeline stages.")]
Vpp = Annotated[int, typer.Option(min=1, help="Chunks of layers per pipeline stage (interleaved schedule).")]
Dp = Annotated[int, typer.Option(min=1, help="Data-parallel ranks (replicas share files).")]
Ep = Annotated[int, typer.Option(min=1, help="Expert-parallel ranks, of the data-parallel ones.")]
Zero = Annotated[
    int, typer.Option(min=0, max=3, help="ZeRO stage: 1 and 2 cut optimizer state over dp, 3 weights too.")
]
Multiple = Annotated[int, typer.Option(min=1, help="Pad the vocabulary to a multiple of this times tp.")]
Budget = Annotated[int, typer.Option(min=1, help="Memory to stay within, in MiB.")]
Threads = Annotated[int | None, typer.Option(min=1, help="Copying threads; the cores, at most 4, by default.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the plan and write nothing.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on where a killed run of the same conversion stopped.")]
Container = Annotated[
    str | None,
    typer.Option(
        "--from", help="hf, sharded, mindspore, strategy, iteration or ckpt, where the source could be several."
    ),
]
Config = Annotated[
    Path | None, typer.Option("--config", help="Model directory with config.json, where the source has none.")
]
FamilyName = Annotated[str | None, typer.Option("--family", help="Family file to use; `none` for --table.")]
Spelled = Annotated[str | None, typer.Option("--from-spelling", help="Of the names, where they fit several spellings.")]
Allow = Annotated[
    list[str] | None,
    typer.Option("--allow", help="Pattern of names that may be left out although the model has no such tensor."),
]
Key = Annotated[str | None, typer.Option("--key", help="Where in a pickled file the state dict is, as `model.ema`.")]
Strategies = Annotated[Path | None, typer.Option("--strategy", help="Strategy file or folder of a source of rank_N.")]
Dtype = Annotated[str | None, typer.Option("--dtype", help="Round weights to F32, BF16, F16 or F64; kept by default.")]


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


@weights.command("convert")
def weights_convert(
    source: Source,
    out: Out,
    to: Annotated[
        str, typer.Option("--to", help="sharded (ms_models), hf, mindspore, strategy, iteration or ckpt.")
    ] = "sharded",
    tp: Tp = 1,
    pp: Pp = 1,
    vpp: Vpp = 1,
    dp: Dp = 1,
    ep: Ep = 1,
    zero: Zero = 0,
    vocab_multiple: Multiple = 1,
    spelling: Annotated[str, typer.Option(help="Names and fusing to write: hf, hf_fused, mindformers.")] = "hf",
    dtype: Dtype = None,
    weights_only: Annotated[
        bool, typer.Option("--weights-only", help="Leave optimizer state and counters out.")
    ] = False,
    container: Container = None,
    family: FamilyName = None,
    config: Config = None,
    from_spelling: Spelled = None,
    allow: Allow = None,
    key: Key = None,
    strategy: Strategies = None,
    ending: Annotated[
        str | None, typer.Option(help="How file names in rank_N folders end, where those have several steps.")
    ] = None,
    redundancy_removed: Annotated[
        bool, typer.Option("--redundancy-removed", help="Ranks of the source lack what others hold.")
    ] = False,
    to_strategy: Annotated[
        Path | None, typer.Option("--to-strategy", help="With --to strategy: strategy files to cut by, not a layout.")
    ] = None,
    max_shard_size: Annotated[
        int | None, typer.Option(min=1, help="Bytes per file, with --to hf or mindspore.")
    ] = None,
    crc: Annotated[bool, typer.Option("--crc", help="Write MindSpore's checksums (mindspore, ckpt).")] = False,
    as_ckpt: Annotated[bool, typer.Option("--as-ckpt", help="With --to strategy: .ckpt files.")] = False,
    remove_redundancy: Annotated[
        bool, typer.Option("--remove-redundancy", help="With --to strategy: each piece in one rank's file only.")
    ] = False,
    mindformers: Annotated[
        str | None, typer.Option(help="With --to strategy: MindFormers' file names before 2.x, with this prefix.")
    ] = None,
    epoch: Annotated[int, typer.Option(min=0, help="With --mindformers: the epoch in file names.")] = 1,
    step: Annotated[int, typer.Option(min=0, help="With --to iteration or --mindformers: the step.")] = 0,
    table: Annotated[
        Path | None, typer.Option(help="With --family none: weights_table.json of the converted repository.")
    ] = None,
    module: Annotated[str | None, typer.Option(help="With --table: a module that a recipe built.")] = None,
    of_class: Annotated[str | None, typer.Option("--class", help="With --table: a class, as `model.GPT`.")] = None,
    arguments: Annotated[
        str | None, typer.Option(help="With --class: its constructor's arguments, a JSON object.")
    ] = None,
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


@weights.command("reshard")
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
    finish(command.reshard(source, out, layout=layout, **options), json, report)


@weights.command("export")
def weights_export(
    source: Source,
    out: Annotated[Path, typer.Option("-o", "--out", help="Hugging Face directory to write.")],
    max_shard_size: Annotated[
        int | None, typer.Option(min=1, help="Bytes per file; the files of the original by default.")
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


@weights.command("verify")
def weights_verify(
    path: Source,
    source: Annotated[
        Path | None, typer.Option(exists=True, help="Original to derive every tensor from again.")
    ] = None,
    cast: Annotated[
        bool, typer.Option("--cast", help="Accept another dtype than the source's, if every value is rounded rightly.")
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


@weights.command("diff")
def weights_diff(
    first: Source,
    second: Source,
    first_from: Annotated[str | None, typer.Option("--first-from", help="Container of the first, if unclear.")] = None,
    second_from: Annotated[str | None, typer.Option("--second-from", help="Container of the second.")] = None,
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
