"""Conversions between containers for tests: plan, copy, finish; and training checkpoints made from directories."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from hf_checkpoints import random_bytes

from mappings.arrangement import Arrangement
from mappings.formats.manifest import hash_file
from mappings.layout import ParallelLayout
from migrate.report import Severity
from migrate.weights.containers import hf, iteration, mindspore, sharded, strategy
from migrate.weights.containers.content import Content
from migrate.weights.containers.stages import stages_for
from migrate.weights.engine.execute import execute
from migrate.weights.engine.plan import plan
from migrate.weights.tensors import Checkpoint, TargetFile


def errors(checkpoint: Checkpoint) -> list[tuple[str, str | None, str]]:
    """Code, tensor and message of every error."""
    return [(f.code, f.tensor, f.message) for f in checkpoint.findings if f.severity is Severity.ERROR]


def write(source: Checkpoint, files: Sequence[TargetFile], out: Path, dropped: Sequence[str] = ()) -> None:
    """Plans and copies; what is wrong with source or plan fails the test."""
    assert errors(source) == []
    made = plan(source, files, dropped=dropped)
    assert [f.message for f in made.findings] == []
    for file in files:
        (out / file.name).parent.mkdir(parents=True, exist_ok=True)
    execute(made, out, memory_budget=16 << 20, threads=2, advance=lambda count: None)


def to_hf(source: Checkpoint, out: Path, recorded=None, **options) -> None:
    content = Content.of(source).weights_only()
    files = hf.layout(content, recorded=recorded, **options)
    write(source, files, out, content.without(source))
    hf.finish(out, files, recorded)


def to_sharded(source: Checkpoint, out: Path, layout: ParallelLayout) -> None:
    content = Content.of(source)
    write(source, sharded.layout(content, layout), out)
    (out / "config.json").write_text(json.dumps(source.config))
    records = {path.name: hash_file(path) for path in sorted(out.iterdir())}
    record = source.extra.get("record", {})
    sharded.finish(out, content, layout, files=records, versions={}, source=record)


def to_strategy(
    source: Checkpoint, out: Path, layout: ParallelLayout, spelling="hf", naming=None, merge=False, **options
) -> None:
    content = Content.of(source, spelling)
    stages = stages_for(content, layout)
    naming = naming or strategy.Naming()
    write(source, strategy.layout(content, stages, naming, **options), out)
    strategy.finish(out, content, stages, naming, merge=merge, **options)


def to_iteration(source: Checkpoint, out: Path, layout: ParallelLayout, spelling="hf", step=7) -> None:
    content = Content.of(source, spelling)
    stages = stages_for(content, layout)
    write(source, iteration.layout(content, stages, step), out)
    iteration.finish(out, content, stages, step, {"loss_scale": 1.0})


def to_mindspore(source: Checkpoint, out: Path, spelling="hf", **options) -> None:
    files = mindspore.layout(Content.of(source, spelling), **options)
    write(source, files, out)
    mindspore.finish(out, files)


def with_states(
    source: Checkpoint, out: Path, seed: int = 0, prefixes: Sequence[str] = ("exp_avg.", "exp_avg_sq.")
) -> None:
    """A full MindSpore directory with the weights of a model, random states in F32, and counters."""
    from safetensors.numpy import save_file

    rng = np.random.default_rng(seed)
    to_mindspore(source, out)
    arrays = {}
    for prefix in prefixes:
        for name, expected in Content.of(source).whole.items():
            arrays[prefix + name] = random_bytes(expected.arrangement.shape, 4, rng).view("<f4")[..., 0]
    save_file(arrays, out / "part1.safetensors")
    numbers = {"global_step": np.int32(7), "loss_scale": np.array([2.5], np.float32)}
    save_file({name: np.asarray(value) for name, value in numbers.items()}, out / "hyper_param.safetensors")
    (out / "param_name_map.json").unlink()
    (out / "config.json").write_text(json.dumps(source.config))


def elements(checkpoint: Checkpoint) -> dict[str, bytes]:
    """Bytes of every atom, gathered element by element: slow, and none of the engine's code."""
    result: dict[str, np.ndarray] = {}
    sizes = {"F32": 4, "F16": 2, "BF16": 2, "F64": 8, "I32": 4, "I64": 8}
    for source in checkpoint.tensors:
        assert source.decoder is None
        size = sizes[source.stored.dtype]
        arrangement: Arrangement = source.stored.arrangement
        with source.path.open("rb") as file:
            file.seek(source.offset)
            raw = np.frombuffer(file.read(arrangement.size * size), np.uint8).reshape(-1, size)
        for place in arrangement.placements():
            whole = result.setdefault(place.atom, np.full((*checkpoint.atoms[place.atom], size), 0xA5, np.uint8))
            at = place.offset + sum(
                (np.arange(n) * step).reshape(*(-1 if i == axis else 1 for i in range(len(place.extent))))
                for axis, (n, step) in enumerate(zip(place.extent, place.strides, strict=True))
            )
            box = tuple(slice(s, s + n) for s, n in zip(place.start, place.extent, strict=True))
            whole[box] = raw[np.broadcast_to(at, place.extent)]
    return {name: array.tobytes() for name, array in result.items()}
