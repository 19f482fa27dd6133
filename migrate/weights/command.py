"""`msmigrate weights`: the functions behind the commands."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from mappings.errors import UserError
from mappings.formats.manifest import NAME as MANIFEST
from mappings.formats.manifest import FileRecord
from mappings.layout import ParallelLayout
from migrate.progress import Tracker, quiet
from migrate.report import Report
from migrate.weights.codes import finding
from migrate.weights.containers import hf, sharded
from migrate.weights.containers.content import Content
from migrate.weights.conversion import (
    DEFAULT_MEMORY_BUDGET,
    DEFAULT_THREADS,
    Request,
    carry_out,
    errors,
    stage,
)
from migrate.weights.dtype_notes import dtype_notes
from migrate.weights.engine.execute import check_budget
from migrate.weights.inspection import inspect
from migrate.weights.side_files import side_files
from migrate.weights.staging import check_output, sync_file
from migrate.weights.tensors import Checkpoint
from migrate.weights.verify import verify

__all__ = ["convert", "export", "inspect", "verify"]


def convert(
    source: Path,
    out: Path,
    *,
    layout: ParallelLayout,
    force: bool = False,
    resume: bool = False,
    dry_run: bool = False,
    memory_budget: int = DEFAULT_MEMORY_BUDGET,
    threads: int = DEFAULT_THREADS,
    track: Tracker = quiet,
) -> Report:
    """Cuts a Hugging Face directory into the files of a layout, with a manifest.

    All faults of the source are findings of the report, found before anything is written; `out` appears complete or not
    at all.

    Args:
        source: directory with `config.json` and weights.
        out: directory to make.
        layout: how many ranks, along which axes.
        force: replace an `out` that holds a checkpoint.
        resume: go on where a killed conversion stopped.
        dry_run: plan and prove, write nothing.
        memory_budget: bytes that all copy buffers together may take.
        threads: copying threads.
        track: progress in bytes.

    Raises:
        UserError: a file is unreadable or malformed, the layout does not fit, `out` may not be written, or a copy
            failed.
    """
    check_budget(memory_budget, threads)
    check_output(out, source, force=force)
    if (source / MANIFEST).is_file():
        raise UserError(f"{source}: is sharded already; export it first, or give the Hugging Face directory")
    checkpoint = hf.read(source)
    report = Report("weights convert", str(source))
    carried = _begin(report, checkpoint)
    if errors(report.findings):
        return report
    content = Content.of(checkpoint)
    files = sharded.layout(content, layout)
    report.facts["layout"] = str(layout)

    def finish(directory: Path, records: Mapping[str, FileRecord]) -> None:
        record: dict[str, Any] = checkpoint.extra.get("record", {})
        sharded.finish(directory, content, layout, files=records, versions=_versions(), source=record)

    request = Request(out, force, resume, dry_run, memory_budget, threads, track)
    carry_out(report, checkpoint, files, request, carried=carried, finish=finish)
    return report


def export(
    source: Path,
    out: Path,
    *,
    force: bool = False,
    resume: bool = False,
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
        resume: go on where a killed export stopped.
        max_shard_size: bytes per file; None keeps the files of the original.
        memory_budget: bytes that all copy buffers together may take.
        threads: copying threads.
        track: progress in bytes.

    Raises:
        UserError: as for `convert`.
    """
    if max_shard_size is not None and max_shard_size < 1:
        raise UserError(f"max shard size must be at least 1 byte, found {max_shard_size}")
    check_budget(memory_budget, threads)
    check_output(out, source, force=force)
    checkpoint = sharded.read(source)
    report = Report("weights export", str(source))
    carried = _begin(report, checkpoint)
    if errors(report.findings):
        return report
    content = Content.of(checkpoint).weights_only()
    recorded = checkpoint.extra["record"]
    files = hf.layout(content, recorded=recorded, max_shard_size=max_shard_size)

    def finish(directory: Path, records: Mapping[str, FileRecord]) -> None:
        for path in hf.finish(directory, files, recorded):
            sync_file(path)

    request = Request(out, force, resume, False, memory_budget, threads, track)
    dropped = content.without(checkpoint)
    carry_out(report, checkpoint, files, request, dropped=dropped, carried=carried, finish=finish)
    return report


def _begin(report: Report, checkpoint: Checkpoint) -> list[Path]:
    """Findings about a source, and the small files that go along."""
    report.findings += checkpoint.findings
    weights = {source.path.name for source in checkpoint.tensors} | {entry.path.name for entry in checkpoint.left_out}
    carried, left = side_files(checkpoint.directory, weights)
    report.findings += dtype_notes(checkpoint.config, checkpoint.tensors)
    report.findings += [finding("W009", "not carried over", file=name) for name in left]
    if errors(report.findings):
        report.stages.append(stage("plan", report.findings, "no plan; nothing was written", None))
    return carried


def _versions() -> dict[str, str]:
    return {"msmigrate": version("msmigrate"), "python": platform.python_version()}
