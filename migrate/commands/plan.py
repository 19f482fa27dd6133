"""`msmigrate plan`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from migrate.commands.options import Json


def plan(
    model: Annotated[Path, typer.Argument(help="Model directory, or a config.json.")],
    devices: Annotated[int | None, typer.Option(min=1, help="Number of devices; --run takes them from its layout.")] = (
        None
    ),
    memory: Annotated[float | None, typer.Option(min=0.001, help="GiB of a device; that of --hardware.")] = None,
    node_size: Annotated[int, typer.Option(min=1, help="Devices of one machine.")] = 8,
    seq_length: Annotated[int | None, typer.Option(min=2, help="Tokens per sequence; the model's, at most 4096.")] = (
        None
    ),
    global_batch: Annotated[int | None, typer.Option(min=1, help="Sequences per step; about 4 M tokens.")] = None,
    precision: Annotated[str, typer.Option(help="fp32, bf16 or fp16.")] = "bf16",
    recompute: Annotated[str | None, typer.Option(help="none, attention, block or full; the first that fits.")] = None,
    hardware: Annotated[str, typer.Option(help="Assumed speeds: ascend-910b, a100, h100, h800.")] = "ascend-910b",
    peak_tflops: Annotated[float | None, typer.Option(min=0.0001, help="Peak of a device, TFLOP/s.")] = None,
    node_gbytes: Annotated[float | None, typer.Option(min=0.0001, help="GB/s between devices of a node.")] = None,
    network_gbytes: Annotated[float | None, typer.Option(min=0.0001, help="GB/s of a device to other nodes.")] = None,
    efficiency: Annotated[float | None, typer.Option(min=0.001, max=1, help="Share of the peak that is reached.")] = (
        None
    ),
    reserve: Annotated[float, typer.Option(min=0, max=0.9, help="Share of the memory left to the framework.")] = 0.1,
    engine: Annotated[str, typer.Option(help="Training program: msmigrate, or megatron for comparisons.")] = (
        "msmigrate"
    ),
    top: Annotated[int, typer.Option(min=1, help="Layouts to show.")] = 5,
    run: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="Judge the layout of this run configuration only.")
    ] = None,
    write: Annotated[Path | None, typer.Option(dir_okay=False, help="Write the best layout as a run config.")] = None,
    data: Annotated[Path, typer.Option(help="For --write: prepared data; decides lengths.")] = Path("data"),
    output: Annotated[Path, typer.Option(help="For --write: run directory.")] = Path("run"),
    json: Json = False,
) -> None:
    """Suggest parallel layouts for a model and a number of devices: memory, time, traffic, and why."""
    import json as json_module

    from mappings.errors import UserError
    from mappings.parallel_options import ParallelOptions
    from migrate.plan import command, run_config
    from migrate.plan.engine import engine_named
    from migrate.plan.hardware import hardware as preset
    from migrate.plan.job import GIB, Job
    from migrate.plan.search import search

    speeds = command.with_own_speeds(preset(hardware), peak_tflops, node_gbytes, network_gbytes, efficiency)
    ParallelOptions(recompute=recompute or "none")
    shapes = command.read_model(model)
    choices = None
    if run is not None:
        choice, precision, its_length = run_config.choice_of_run(run)
        devices, seq_length = choice.layout.world_size, seq_length or its_length
        global_batch = choice.micro_batch * choice.micro_batches * choice.layout.dp
        choices = [choice]
    if devices is None:
        raise typer.BadParameter("--devices is missing")
    rows = run_config.rows_of(data) if write is not None else None
    if rows is not None and seq_length not in (None, rows.seq_length):
        raise UserError(f"plan: --seq-length is {seq_length}, but {data} holds sequences of {rows.seq_length}")
    length = seq_length or (command.default_seq_length(shapes) if rows is None else rows.seq_length)
    usual = command.default_global_batch(devices, node_size, length)
    if global_batch is None:
        global_batch = usual if rows is None else run_config.batch_for(rows, usual, devices)
    job = Job(
        devices=devices,
        memory=int((memory or speeds.memory_gib) * GIB),
        seq_length=length,
        global_batch=global_batch,
        node_size=node_size,
        precision=precision,
        reserve=reserve,
        recompute=recompute,
    )
    found = search(shapes, job, speeds, engine_named(engine), choices=choices)
    if write is not None:
        run_config.write(found, write, model if model.is_dir() else model.parent, data, output, rows)
    body = command.to_dict(found, top)
    typer.echo(json_module.dumps(body, indent=2) if json else command.text(found, top))
    raise typer.Exit(body["exit_code"])
