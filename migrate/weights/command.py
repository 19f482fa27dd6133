"""`msmigrate weights`: the functions behind the commands."""

from __future__ import annotations

import os
import platform
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path

from mappings.errors import UserError
from mappings.formats.hf_directory import INDEX
from mappings.formats.manifest import NAME as MANIFEST
from mappings.formats.manifest import FileRecord, Manifest, hash_file, weights_file
from mappings.formats.safetensors import TensorEntry
from mappings.layout import ParallelLayout
from migrate.progress import Tracker, quiet
from migrate.report import Finding, Report, Severity, Stage, Verdict
from migrate.weights.codes import finding
from migrate.weights.convert_plan import HfModel, compare_tied, dtype_notes, judge, plan_convert
from migrate.weights.copy import Moved, block_bytes, execute
from migrate.weights.export_plan import ShardedModel, compare_replicas, judge_shards, plan_export, source_record
from migrate.weights.inspection import inspect
from migrate.weights.plan import Plan, prove
from migrate.weights.side_files import side_files
from migrate.weights.staging import check_output, check_space, copy_files, leftovers, staged, write_text
from migrate.weights.verify import verify

__all__ = ["convert", "export", "inspect", "verify"]

DEFAULT_MEMORY_BUDGET = 1 << 30
DEFAULT_THREADS = min(4, os.cpu_count() or 1)


def convert(
    source: Path,
    out: Path,
    *,
    layout: ParallelLayout,
    force: bool = False,
    dry_run: bool = False,
    memory_budget: int = DEFAULT_MEMORY_BUDGET,
    threads: int = DEFAULT_THREADS,
    track: Tracker = quiet,
) -> Report:
    """Cuts a Hugging Face directory into the files of a layout, with a manifest.

    All faults of the source are findings of the report, found before anything is written; `out` appears complete or not
    at all.

    Args:
        source: directory with `config.json` and safetensors.
        out: directory to make.
        layout: how many ranks, along which axes.
        force: replace an `out` that holds a checkpoint.
        dry_run: plan and prove, write nothing.
        memory_budget: bytes that all copy buffers together may take.
        threads: copying threads.
        track: progress in bytes.

    Raises:
        UserError: a file is unreadable or malformed, the layout does not fit, `out` may not be written, or a copy
            failed.
    """
    block_bytes(memory_budget, threads)
    check_output(out, source, force=force)
    if (source / MANIFEST).is_file():
        raise UserError(f"{source}: is sharded already; export it first, or give the Hugging Face directory")
    model = HfModel.read(source)
    report = Report("weights convert", str(source))
    report.findings += [finding("W018", f"left over: {path}") for path in leftovers(out)]
    report.findings += judge(model)
    if not _errors(report.findings) and model.tied:
        report.findings += (unequal := compare_tied(model))
        message = f"{len(model.tied)} stored copies of tied parameters compared"
        report.stages.append(_stage("tied copies", unequal, message, len(model.tied)))
    carried, left = side_files(source, model.weights.files)
    report.findings += [finding("W009", "not carried over", file=name) for name in left]
    if _errors(report.findings):
        report.stages.append(_stage("plan", report.findings, "no plan; nothing was written", None))
        return report
    plan = plan_convert(model, layout)
    _proved(report, plan, list(model.tensors.values()))
    report.facts["layout"] = str(layout)
    if dry_run:
        report.stages.append(Stage("write", Verdict.SKIPPED, "dry run"))
        return report
    check_space(out, plan.bytes_written + sum(path.stat().st_size for path in carried))
    with staged(out, replace=force) as directory:
        moved, seconds = _copied(plan, directory, memory_budget, threads, track)
        copy_files(carried, directory)
        records = _hashed(directory, threads, track)
        weights = {rank: weights_file(layout.weight_owner(rank)) for rank in range(layout.world_size)}
        Manifest(model.family.name, layout, weights, records, _versions(), source_record(model)).write(directory)
    _written(report, plan, moved, seconds, out)
    return report


def export(
    source: Path,
    out: Path,
    *,
    force: bool = False,
    max_shard_size: int | None = None,
    memory_budget: int = DEFAULT_MEMORY_BUDGET,
    threads: int = DEFAULT_THREADS,
    track: Tracker = quiet,
) -> Report:
    """Joins a sharded directory, of a conversion or of a run, into a Hugging Face directory.

    Args:
        source: directory with a manifest.
        out: directory to make.
        force: replace an `out` that holds a checkpoint.
        max_shard_size: bytes per file; None keeps the files of the original.
        memory_budget: bytes that all copy buffers together may take.
        threads: copying threads.
        track: progress in bytes.

    Raises:
        UserError: as for `convert`.
    """
    if max_shard_size is not None and max_shard_size < 1:
        raise UserError(f"max shard size must be at least 1 byte, found {max_shard_size}")
    block_bytes(memory_budget, threads)
    check_output(out, source, force=force)
    model = ShardedModel.read(source)
    report = Report("weights export", str(source))
    report.findings += [finding("W018", f"left over: {path}") for path in leftovers(out)]
    report.findings += judge_shards(model)
    if not _errors(report.findings):
        unequal, compared = compare_replicas(model)
        report.findings += unequal
        if compared:
            message = f"{compared} copies of replicated parameters compared between ranks"
            report.stages.append(_stage("replicas", unequal, message, compared))
    if _errors(report.findings):
        report.stages.append(_stage("plan", report.findings, "no plan; nothing was written", None))
        return report
    report.findings += dtype_notes(model.config, model.entries)
    carried, left = side_files(source, set(model.manifest.weights.values()))
    report.findings += [finding("W009", "not carried over", file=name) for name in left]
    plan, index = plan_export(model, max_shard_size)
    _proved(report, plan, model.entries)
    check_space(out, plan.bytes_written + sum(path.stat().st_size for path in carried))
    with staged(out, replace=force) as directory:
        moved, seconds = _copied(plan, directory, memory_budget, threads, track)
        copy_files(carried, directory)
        if index is not None:
            write_text(directory / INDEX, index)
    _written(report, plan, moved, seconds, out)
    return report


def _errors(findings: list[Finding]) -> list[Finding]:
    return [found for found in findings if found.severity is Severity.ERROR]


def _stage(name: str, findings: list[Finding], message: str, compared: int | None) -> Stage:
    errors = _errors(findings)
    if errors:
        return Stage(name, Verdict.FAIL, f"{len(errors)} errors; {message}", compared)
    return Stage(name, Verdict.PASS, message, compared)


def _proved(report: Report, plan: Plan, available: list[TensorEntry]) -> None:
    prove(plan, available)
    targets = sum(len(file.targets) for file in plan.files)
    message = (
        f"{len(available)} source tensors accounted for; {targets} targets in {len(plan.files)} files made once each"
    )
    report.stages.append(Stage("plan", Verdict.PASS, message, targets))
    report.facts.update(
        files=len(plan.files),
        tensors=targets,
        bytes_minimum=plan.bytes_minimum,
        bytes_padding=plan.bytes_written - plan.bytes_minimum,
    )


def _copied(plan: Plan, directory: Path, memory_budget: int, threads: int, track: Tracker) -> tuple[Moved, float]:
    start = time.perf_counter()
    with track("copying", plan.bytes_minimum) as advance:
        moved = execute(plan, directory, memory_budget=memory_budget, threads=threads, advance=advance)
    return moved, time.perf_counter() - start


def _hashed(directory: Path, threads: int, track: Tracker) -> dict[str, FileRecord]:
    paths = sorted(directory.iterdir())
    with track("hashing", len(paths)) as advance, ThreadPoolExecutor(threads) as pool:
        records = {}
        for path, record in zip(paths, pool.map(hash_file, paths), strict=True):
            records[path.name] = record
            advance(1)
    return records


def _written(report: Report, plan: Plan, moved: Moved, seconds: float, out: Path) -> None:
    report.facts.update(
        out=str(out),
        bytes_moved=moved.bytes_read,
        seconds=round(seconds, 3),
        bandwidth_mb_per_s=round(moved.bytes_read / max(seconds, 1e-9) / 1e6, 1),
    )
    message = f"{moved.bytes_written} bytes in {len(plan.files)} files, {seconds:.2f} s"
    report.stages.append(Stage("write", Verdict.PASS, message))


def _versions() -> dict[str, str]:
    return {"msmigrate": version("msmigrate"), "python": platform.python_version()}
