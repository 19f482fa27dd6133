"""`msmigrate weights`: the functions behind the commands."""

from __future__ import annotations

import json
import platform
import shutil
from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from mappings.errors import UserError
from mappings.families.family import HF
from mappings.formats.conversion_manifest import NAME as CONVERSION
from mappings.formats.conversion_manifest import ConversionManifest
from mappings.formats.iteration import COMMON, FOLDER, METADATA, TRACKER
from mappings.formats.manifest import NAME as MANIFEST
from mappings.formats.manifest import FileRecord, hash_file, random_file
from mappings.formats.param_name_map import NAME as NAME_MAP
from mappings.layout import ParallelLayout
from migrate.report import Report, Stage, Verdict
from migrate.weights.codes import finding
from migrate.weights.configuration import configuration
from migrate.weights.containers import hf, sharded, table
from migrate.weights.containers.content import Content
from migrate.weights.containers.counters import common_values
from migrate.weights.containers.rank_folders import RANK, STRATEGY_FOLDER
from migrate.weights.conversion import Request, carry_out, errors, stage
from migrate.weights.destinations import Destination, Origin, files_for
from migrate.weights.difference import diff
from migrate.weights.dtype_notes import NAMES, dtype_notes
from migrate.weights.engine.execute import check_budget
from migrate.weights.inspection import inspect
from migrate.weights.opening import Hints, home_of, open_checkpoint
from migrate.weights.padding import not_zero
from migrate.weights.recorded import of_other_size
from migrate.weights.side_files import side_files
from migrate.weights.staging import check_output, sync_file
from migrate.weights.tensors import Checkpoint
from migrate.weights.verify import verify

__all__ = ["convert", "convert_table", "diff", "export", "inspect", "reshard", "verify"]


def convert(
    source: Path,
    out: Path,
    *,
    layout: ParallelLayout | None = None,
    destination: Destination | None = None,
    hints: Hints | None = None,
    cast: str | None = None,
    weights_only: bool = False,
    command: str = "convert",
    **options: Any,
) -> Report:
    """Writes a checkpoint in another container, spelling or cut.

    All faults of the source are findings of the report, found before anything is written; the output appears complete
    or not at all.

    Args:
        source: a checkpoint of any container.
        out: directory to make.
        layout: of the per-rank directory to write; or
        destination: what to write, of any container.
        hints: what the source does not say by itself.
        cast: safetensors dtype for the weights; None keeps each as it is.
        weights_only: leave optimizer state and counters out.
        command: name for the report.
        options: fields of `Request`: how the copy is made.

    Raises:
        UserError: a file is unreadable or malformed, the layout does not fit, the output may not be written, or a copy
            failed.
    """
    request = Request(out, **options)
    destination = destination or Destination(layout=layout or ParallelLayout())
    destination.check()
    check_budget(request.memory_budget, request.threads)
    check_output(request.out, source, force=request.force, resume=request.resume)
    if cast is not None and cast not in NAMES.values():
        raise UserError(f"dtype {cast!r} is none of {', '.join(NAMES.values())}")
    report = Report(f"weights {command}", str(source))
    report.findings += of_other_size(home_of(source), hints.container if hints else None)
    if errors(report.findings):
        report.stages.append(stage("files", report.findings, "the source is not what was written", None))
        return report
    weights_only = weights_only or destination.container == hf.NAME
    checkpoint = open_checkpoint(source, hints, lambda found: not_zero(found, states=not weights_only))
    report.facts.update(read=checkpoint.container, written=destination.container)
    report.findings += checkpoint.findings
    report.findings += dtype_notes(checkpoint.config, checkpoint.tensors)
    carried = _carried(report, checkpoint, home_of(source), destination)
    if errors(report.findings):
        report.stages.append(stage("plan", report.findings, "no plan; nothing was written", None))
        return report
    if command == "export":
        destination = replace(destination, spelling=_published(checkpoint))
    content = Content.of(checkpoint, destination.spelling, cast)
    if weights_only:
        content = content.weights_only()
    elif destination.container == sharded.NAME:
        content = replace(content, counters={})
    left = content.without(checkpoint)
    if left:
        report.findings.append(finding("W023", f"{len(left)} tensors of training left out, such as {left[0]}"))
    origin = _origin(checkpoint, content)
    if origin.record and destination.container == hf.NAME and hf.published(origin.record) != content.spelling:
        message = f"the files of the original have the spelling {hf.published(origin.record)}, so these are named anew"
        report.findings.append(finding("W025", message))
    files, finish_container = files_for(content, destination, origin)
    if destination.layout != ParallelLayout():
        report.facts["layout"] = str(destination.layout)
    changed_config = configuration(checkpoint, cast)
    if changed := sorted(_different(checkpoint.config, changed_config)):
        report.findings.append(finding("W024", f"changed: {', '.join(changed)}", file="config.json"))
    rewrite = changed or not any(path.name == "config.json" for path in carried)
    carried = [path for path in carried if not (rewrite and path.name == "config.json")]
    random = _random_files(report, checkpoint, content, destination)

    def finish(directory: Path, records: Mapping[str, FileRecord]) -> None:
        written = dict(records)
        small = [Path(shutil.copyfile(path, directory / name)) for name, path in random.items()]
        if rewrite:
            path = directory / "config.json"
            path.write_text(json.dumps(changed_config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
            small.append(path)
        for path in small:
            sync_file(path)
            written[path.name] = hash_file(path)
        small = finish_container(directory, written)
        if destination.container in (hf.NAME, sharded.NAME):
            for path in small:
                sync_file(path)
        else:
            small.append(_conversion_manifest(directory, written, small, destination, origin))

    carry_out(report, checkpoint, files, request, dropped=left, carried=carried, finish=finish)
    return report


def export(
    source: Path,
    out: Path,
    *,
    max_shard_size: int | None = None,
    hints: Hints | None = None,
    cast: str | None = None,
    **options: Any,
) -> Report:
    """Writes a Hugging Face directory: the very files of the original where the source knows them.

    Args and errors as for `convert`; `max_shard_size` is in bytes per file.
    """
    destination = Destination(hf.NAME, max_shard_size=max_shard_size)
    return convert(source, out, destination=destination, hints=hints, cast=cast, command="export", **options)


def reshard(source: Path, out: Path, *, layout: ParallelLayout, **options: Any) -> Report:
    """Takes a sharded checkpoint to another layout, optimizer state, masters and the state of the run included.

    Raises:
        UserError: the source is not sharded; else as for `convert`.
    """
    if not (source / MANIFEST).exists():
        raise UserError(f"{source}: no {MANIFEST}, so it is no sharded checkpoint; use convert")
    return convert(source, out, layout=layout, command="reshard", **options)


def convert_table(
    source: Path,
    out: Path,
    weights_table: Path,
    *,
    module: str | None = None,
    of_class: str | None = None,
    arguments: Mapping[str, Any] | None = None,
    key: str | None = None,
    **options: Any,
) -> Report:
    """Writes a state dict of a converted repository's own model for its converted cells (`--family none`).

    Args:
        source: state dict of PyTorch: `.pt`, `.bin`, safetensors, or a directory.
        out: directory to make.
        weights_table: `weights_table.json` of the converted repository.
        module: name of a module that was built by a recipe; or
        of_class: a class, with
        arguments: those of its constructor.
        key: where in a pickled file the state dict is.
        options: fields of `Request`.

    Raises:
        UserError: as for `convert`, or the table does not know the module.
    """
    request = Request(out, **options)
    check_budget(request.memory_budget, request.threads)
    check_output(out, source, force=request.force, resume=request.resume)
    checkpoint = table.read(source, weights_table, module=module, of_class=of_class, arguments=arguments, key=key)
    report = Report("weights convert", str(source))
    report.findings += checkpoint.findings
    if errors(report.findings):
        report.stages.append(stage("plan", report.findings, "no plan; nothing was written", None))
        return report
    carry_out(report, checkpoint, table.layout(checkpoint), request, finish=lambda directory, records: None)
    return report


def _carried(report: Report, checkpoint: Checkpoint, home: Path, destination: Destination) -> list[Path]:
    """Small files that go along; those that do not are noted."""
    weights = {source.path.name for source in checkpoint.tensors} | {entry.path.name for entry in checkpoint.left_out}
    weights |= {part.path.name for source in checkpoint.tensors if source.decoder for part in source.decoder.parts}
    carried, left = side_files(home, weights | _bookkeeping(home))
    if destination.container == sharded.NAME and checkpoint.container == sharded.NAME:
        left = [name for name in left if not name.startswith("random-rank")]
    report.findings += [finding("W009", "not carried over", file=name) for name in left]
    return carried


def _bookkeeping(home: Path) -> set[str]:
    """Names of what containers write beside tensors, which their readers have understood."""
    small = {STRATEGY_FOLDER, NAME_MAP, METADATA, COMMON, TRACKER, CONVERSION}
    names = (path.name for path in home.iterdir())
    return {name for name in names if name in small or RANK.fullmatch(name) or FOLDER.fullmatch(name)}


def _origin(checkpoint: Checkpoint, content: Content) -> Origin:
    record: Mapping[str, Any] = checkpoint.extra.get("record") or {}
    manifest = checkpoint.extra.get("manifest")
    training = manifest.training if manifest is not None and content.states else {}
    versions = {"msmigrate": version("msmigrate"), "python": platform.python_version()}
    return Origin(record, training, versions, common_values(checkpoint) if content.states else {})


def _published(checkpoint: Checkpoint) -> str:
    """The spelling of the Hugging Face directory that a checkpoint came from; the usual one where it cannot be had."""
    spelling = hf.published(checkpoint.extra.get("record") or {})
    family = checkpoint.family
    assert family is not None
    if spelling not in family.spellings:
        return HF
    encoded = any(tensor.encoding for tensor in family.spelling(checkpoint.config, spelling))
    return HF if encoded else spelling


def _conversion_manifest(
    directory: Path, records: dict[str, FileRecord], small: list[Path], destination: Destination, origin: Origin
) -> Path:
    """Writes the manifest of a container that has none, last of all. Links to a file share its digest."""
    known = {_identity(directory / name): record for name, record in records.items()}
    changed = {_identity(path) for path in small if path.relative_to(directory).as_posix() in records}
    for path in small:
        sync_file(path)
        identity = _identity(path)
        if identity not in known or identity in changed:
            known[identity] = hash_file(path)
        records[path.relative_to(directory).as_posix()] = known[identity]
    text = ConversionManifest(
        destination.container, destination.spelling, records, origin.record, origin.versions
    ).text()
    target = directory / CONVERSION
    target.write_text(text, encoding="utf-8")
    sync_file(target)
    return target


def _identity(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_dev, status.st_ino


def _different(before: Mapping[str, Any], after: Mapping[str, Any]) -> set[str]:
    return {key for key in {*before, *after} if before.get(key) != after.get(key)}


def _random_files(
    report: Report, checkpoint: Checkpoint, content: Content, destination: Destination
) -> dict[str, Path]:
    """Random states of the ranks of a run, by the name they get. Ranks that are new take that of an old one."""
    manifest = checkpoint.extra.get("manifest")
    if destination.container != sharded.NAME or manifest is None or not content.states:
        return {}
    old, new = manifest.layout.world_size, destination.layout.world_size
    files = {random_file(rank): checkpoint.directory / random_file(rank % old) for rank in range(new)}
    files = {name: path for name, path in files.items() if path.name in manifest.files}
    if files and new > old:
        report.stages.append(Stage("random states", Verdict.PASS, f"ranks from {old} on take that of rank % {old}"))
    return files
