"""What `msmigrate plan` does: reads a model, searches, and puts the result into words or JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from mappings.errors import UserError
from mappings.families import family_for_config
from migrate.plan.hardware import Hardware
from migrate.plan.job import GIB
from migrate.plan.search import Plan, Planned
from migrate.plan.shapes import ModelShapes
from migrate.plan.timing import peak_tflops
from migrate.plan.why import why_behind, why_best

TOKENS_PER_STEP = 4 << 20
"""Of the default global batch: what published pretrainings of 7B to 70B take (4 M, Llama 2, arXiv 2307.09288)."""
LONGEST_DEFAULT = 4096
FITS, NOTHING_FITS = 0, 1


def read_model(path: Path) -> ModelShapes:
    """The model of a Hugging Face directory or of a `config.json`.

    Raises:
        UserError: no such file, no JSON object, or a model of no known family.
    """
    file = path / "config.json" if path.is_dir() else path
    if not file.is_file():
        raise UserError(f"{path}: no model directory (config.json) there")
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{file}: cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise UserError(f"{file}: not valid JSON ({error})") from error
    if not isinstance(config, dict):
        raise UserError(f"{file}: must be a JSON object")
    return ModelShapes(family_for_config(config, str(file)), config)


def default_seq_length(shapes: ModelShapes) -> int:
    """What the model knows positions for, at most 4096."""
    known = shapes.config.get("max_position_embeddings")
    return min(known, LONGEST_DEFAULT) if isinstance(known, int) and known > 0 else LONGEST_DEFAULT


def default_global_batch(devices: int, node_size: int, seq_length: int) -> int:
    """About 4 M tokens, a multiple of the nodes (of the devices, where there is one node), so that dp divides it."""
    unit = max(devices // node_size, 1) if devices > node_size else devices
    return -(-max(TOKENS_PER_STEP // seq_length, 1) // unit) * unit


def to_dict(plan: Plan, top: int) -> dict[str, Any]:
    """The plan as plain data."""
    return {
        "model": {"family": plan.shapes.family.name, "parameters": plan.shapes.parameters},
        "job": vars(plan.job),
        "hardware": vars(plan.hardware),
        "engine": vars(plan.engine),
        "looked_at": plan.looked_at,
        "layouts_that_fit": len(plan.ranked),
        "layouts": [_planned(plan, one) for one in plan.ranked[:top]],
        "why": why_best(plan, plan.ranked[0]) if plan.ranked else [],
        "refused": dict(plan.refused.counts),
        "examples": plan.refused.examples,
        "exit_code": FITS if plan.ranked else NOTHING_FITS,
    }


def _planned(plan: Plan, one: Planned) -> dict[str, Any]:
    choice, time = one.choice, one.time
    feasible = plan.variants[one.axes]
    return {
        "layout": choice.layout.to_dict(),
        "parallel": vars(choice.options),
        "micro_batch_size": choice.micro_batch,
        "micro_batches": choice.micro_batches,
        "memory_bytes": one.memory.to_dict(),
        "activation_bytes_by_recompute": {name: found.activations for name, found in plan.by_recompute(one).items()},
        "step_s": time.total,
        "seconds": {"compute": time.compute, "recompute": time.recompute, "idle": time.idle, **vars(time.seconds)},
        "bubble": time.bubble,
        "communication_share": time.communication / time.total,
        "bytes_sent_per_step": vars(time.sent),
        "tokens_per_s": plan.job.global_batch * plan.job.seq_length / time.total,
        "mfu": plan.mfu(time),
        "feasible_micro_batches": {size: feasible[size].choice.recompute for size in sorted(feasible)},
        "why": why_behind(plan.ranked[0], one) if one is not plan.ranked[0] else "best",
    }


def text(plan: Plan, top: int) -> str:
    """The plan for a person."""
    return "\n".join([*_head(plan), *_table(plan, top), *_details(plan), *_refusals(plan)])


def _head(plan: Plan) -> Iterator[str]:
    job, hardware = plan.job, plan.hardware
    peak = peak_tflops(hardware, job.precision)
    precision = job.precision
    if peak != hardware.peak_tflops:
        precision += f" (taken as 1/{hardware.peak_tflops / peak:g} of the 16-bit {hardware.peak_tflops:g} TFLOP/s)"
    yield (
        f"{plan.shapes.family.name}, {plan.shapes.parameters:,} parameters; {job.devices:,} devices of "
        f"{job.memory / GIB:g} GiB ({job.usable / GIB:.1f} usable), nodes of {job.node_size}"
    )
    yield (
        f"step: {job.global_batch:,} sequences of {job.seq_length:,} tokens, {precision}; {hardware.name}: "
        f"{peak:g} TFLOP/s at {100 * hardware.efficiency:.0f} %, {hardware.node_gbytes:g} GB/s in a "
        f"node, {hardware.network_gbytes:g} between nodes"
    )
    yield f"speeds: {hardware.source}"
    yield f"{plan.looked_at:,} combinations looked at, {len(plan.ranked):,} layouts fit"


COLUMNS = ("#", "layout", "micro", "recompute", "GiB", "step s", "MFU", "idle", "comm", "sent GB", "why")


def _table(plan: Plan, top: int) -> Iterator[str]:
    rows = [COLUMNS]
    for number, one in enumerate(plan.ranked[:top], 1):
        choice, time = one.choice, one.time
        extras = (["sp"] if choice.sequence_parallel else []) + (
            [choice.schedule] if choice.layout.pp > 1 else []
        ) + ([choice.context] if choice.layout.cp > 1 else [])  # fmt: skip
        rows.append(
            (
                str(number),
                " ".join([str(choice.layout), *extras]),
                f"{choice.micro_batch} x {choice.micro_batches}",
                choice.recompute,
                f"{one.memory.total / GIB:.1f}",
                f"{time.total:.2f}",
                f"{100 * plan.mfu(time):.0f} %",
                f"{100 * time.bubble:.0f} %",
                f"{100 * time.communication / time.total:.0f} %",
                f"{time.sent.total / 1e9:.1f}",
                why_behind(plan.ranked[0], one) if number > 1 else "the fastest, or as fast and simpler",
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(COLUMNS))]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _details(plan: Plan) -> Iterator[str]:
    if not plan.ranked:
        yield "nothing fits; the least any layout needs is " + (
            f"{min(plan.smallest.values()) / GIB:.1f} GiB" if plan.smallest else "unknown: there was no candidate"
        )
        return
    best = plan.ranked[0]
    yield f"\n1: {best.choice.layout}"
    parts = {name: size for name, size in best.memory.to_dict().items() if name != "total"}
    yield "   GiB per rank: " + ", ".join(f"{n.replace('_', ' ')} {s / GIB:.2f}" for n, s in parts.items())
    sent = {axis: size for axis, size in vars(best.time.sent).items() if size}
    if sent:
        yield "   GB sent per rank and step: " + ", ".join(f"{axis} {size / 1e9:.2f}" for axis, size in sent.items())
    policies = plan.by_recompute(best).items()
    yield "   activations by recompute policy, GiB: " + ", ".join(f"{n} {m.activations / GIB:.2f}" for n, m in policies)
    feasible = plan.variants[best.axes]
    yield "   micro-batches that fit: " + ", ".join(
        f"{size} (recompute {feasible[size].choice.recompute}, {feasible[size].time.total:.2f} s)"
        for size in sorted(feasible)
    )
    yield from (f"   {line}" for line in why_best(plan, best))


def _refusals(plan: Plan) -> Iterator[str]:
    if plan.refused.counts:
        yield "\nrefused:"
    for reason, count in plan.refused.counts.most_common():
        yield f"{count:>8,}  {reason} (e.g. {plan.refused.examples[reason]})"


def with_own_speeds(
    preset: Hardware, peak_tflops: float | None, node: float | None, network: float | None, efficiency: float | None
) -> Hardware:
    """A preset with what the user knows better."""
    given: dict[str, Any] = {
        "peak_tflops": peak_tflops, "node_gbytes": node, "network_gbytes": network, "efficiency": efficiency,
    }  # fmt: skip
    given = {name: value for name, value in given.items() if value is not None}
    if not given:
        return preset
    source = f"{', '.join(given)} given; the rest: {preset.source}"
    return replace(preset, **given, source=source)
