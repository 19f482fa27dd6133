"""`msmigrate eval`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from migrate.commands.options import Directory, Json


def evaluate(
    model: Annotated[Path, Directory],
    data: Annotated[
        Path | None, typer.Option(exists=True, file_okay=False, help="Prepared data; by default that of the run.")
    ] = None,
    prompt: Annotated[list[str] | None, typer.Option(help="A text to continue. Repeatable.")] = None,
    prefixes: Annotated[int, typer.Option(min=0, help="Validation sequences whose beginnings are continued.")] = 0,
    tokens: Annotated[int, typer.Option(min=1, help="Tokens of a continuation.")] = 32,
    temperature: Annotated[float, typer.Option(min=0.0, help="Of continuations; 0 takes the likeliest token.")] = 0.0,
    layout: Annotated[str | None, typer.Option(help="Several processes, e.g. tp=2,dp=2.")] = None,
    micro_batch: Annotated[int, typer.Option(min=1, help="Sequences per forward pass of one rank.")] = 1,
    sequences: Annotated[int | None, typer.Option(min=1, help="Take this many sequences of the split only.")] = None,
    jit: Annotated[bool, typer.Option(help="Compile the forward pass.")] = True,
    timeout: Annotated[float, typer.Option(min=0.0, help="End after this many seconds; 0 sets no limit.")] = 0.0,
    json: Json = False,
) -> None:
    """Evaluate a Hugging Face directory, a checkpoint or a run: loss, perplexity, accuracy, continuations."""
    import json as json_module

    from ms_models.train.launch.evaluating import Request, evaluate_model, layout_of
    from ms_models.train.launch.signals import SIGNAL_EXIT, Interrupted

    request = Request(
        data=data,
        prompts=tuple(prompt or ()),
        prefixes=prefixes,
        sample_tokens=tokens,
        temperature=temperature,
        layout=None if layout is None else layout_of(layout),
        micro_batch_size=micro_batch,
        sequences=sequences,
        jit=jit,
        timeout_s=timeout,
    )
    try:
        found = evaluate_model(model, request, lambda line: typer.echo(line, err=True))
    except Interrupted as interruption:
        typer.echo(f"interrupted by {interruption}; every process was ended", err=True)
        raise typer.Exit(SIGNAL_EXIT + interruption.number) from None
    if json:
        typer.echo(json_module.dumps(found, indent=2))
        return
    typer.echo(f"{found['model']} on {found['data']}, layout {found['layout']}")
    perplexity = found.get("eval_perplexity")
    typer.echo(f"loss {found['eval_loss']:.6f}" + (f", perplexity {perplexity:.4f}" if perplexity is not None else ""))
    if "eval_accuracy" in found:
        typer.echo(f"accuracy {found['eval_accuracy']:.4%}")
    typer.echo(f"over {found['eval_tokens']:,} tokens")
    for sample in found.get("samples", ()):
        typer.echo(f"{sample['prompt']!r} goes on {sample['text']!r}")
    if "samples_left_out" in found:
        typer.echo(found["samples_left_out"])
