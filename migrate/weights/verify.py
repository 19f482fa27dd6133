"""`msmigrate weights verify`: is this directory what was written, and is it what its source gives?

The second question is answered without the planner: whole source tensors are read, cut with numpy and compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mappings.families import Parameter
from mappings.formats.hf_directory import read_config
from mappings.formats.manifest import NAME, Manifest, hash_file
from mappings.formats.safetensors import SafetensorsError, TensorEntry, read_bytes
from mappings.layout import ParallelLayout
from migrate.progress import Tracker, quiet
from migrate.report import Finding, Report, Severity, Stage, Verdict
from migrate.weights.codes import finding
from migrate.weights.convert_plan import HfModel, compare_tied, judge
from migrate.weights.export_plan import ShardedModel, judge_shards
from migrate.weights.side_files import side_files

Bytes = npt.NDArray[np.uint8]


def verify(directory: Path, *, source: Path | None = None, track: Tracker = quiet) -> Report:
    """Judges a sharded directory, or an exported Hugging Face directory.

    Args:
        directory: what to judge. With a manifest: digests, then headers. Without: headers against `config.json`.
        source: a Hugging Face directory; then every tensor and side file is compared with it, byte for byte.
        track: progress in bytes.

    Raises:
        UserError: there is no such directory, no readable manifest or `config.json`, or the source is malformed.
    """
    report = Report("weights verify", str(directory))
    if (directory / NAME).exists():
        _sharded(report, directory, source, track)
    else:
        read_config(directory)
        _hugging_face(report, directory, source, track)
    return report


def _sharded(report: Report, directory: Path, source: Path | None, track: Tracker) -> None:
    manifest = Manifest.read(directory)
    damaged = _digests(directory, manifest, track)
    _add(report, "digests", damaged, f"{len(manifest.files)} files against their SHA-256", len(manifest.files))
    known = {*manifest.files, NAME}
    strangers = sorted(path.name for path in directory.iterdir() if path.is_file() and path.name not in known)
    report.findings += [finding("W016", "not in the manifest", file=name) for name in strangers]
    if any(found.code == "W010" for found in damaged):
        report.stages.append(Stage("headers", Verdict.SKIPPED, "files are missing"))
        return
    try:
        model = ShardedModel.read(directory)
    except SafetensorsError as error:
        _add(report, "headers", [_malformed(error)], "a file is malformed", None)
        return
    problems = judge_shards(model)
    _add(
        report,
        "headers",
        problems,
        f"{len(model.entries)} tensors against config.json and the layout",
        len(model.entries),
    )
    if source is None or problems:
        reason = "no source was given" if source is None else "the headers are wrong"
        report.stages.append(Stage("source", Verdict.SKIPPED, reason))
        return
    original = HfModel.read(source)
    _side_files(report, directory, source)
    _tensors(report, original, len(model.entries), [], lambda: _pieces(original, model), track)


def _hugging_face(report: Report, directory: Path, source: Path | None, track: Tracker) -> None:
    try:
        model = HfModel.read(directory)
    except SafetensorsError as error:
        _add(report, "headers", [_malformed(error)], "a file is malformed", None)
        return
    problems = judge(model)
    _add(report, "headers", problems, f"{len(model.tensors)} tensors against config.json", len(model.tensors))
    if model.tied and not any(found.severity is Severity.ERROR for found in problems):
        _add(report, "tied copies", compare_tied(model), f"{len(model.tied)} stored copies", len(model.tied))
    if source is None:
        report.stages.append(Stage("source", Verdict.SKIPPED, "no source was given"))
        return
    original = HfModel.read(source)
    _side_files(report, directory, source)
    names = sorted(set(original.tensors) - set(original.left_out))
    missing = [finding("W001", f"missing; {source.name} has it", tensor=n) for n in names if n not in model.tensors]
    extra = [
        finding("W002", f"unexpected; {source.name} does not have it", file=entry.path.name, tensor=name)
        for name, entry in sorted(model.tensors.items())
        if name not in original.tensors
    ]
    common = [name for name in names if name in model.tensors]

    def pairs() -> Iterator[tuple[TensorEntry, TensorEntry, Bytes]]:
        for name in common:
            yield original.tensors[name], model.tensors[name], _whole(original.tensors[name])

    _tensors(report, original, len(common), missing + extra, pairs, track)


def _pieces(original: HfModel, model: ShardedModel) -> Iterator[tuple[TensorEntry, TensorEntry, Bytes]]:
    """(source, stored piece, what the piece should hold) for every tensor of every owner."""
    layout = model.manifest.layout
    for name, parameter in original.parameters.items():
        if name not in original.tensors:
            continue  # reported as missing by `judge` of the source
        whole = _whole(original.tensors[name])
        for owner, held in model.tensors.items():
            if name in held:
                yield (
                    original.tensors[name],
                    held[name],
                    _cut(whole, parameter, layout, layout.coordinates(owner)["tp"]),
                )


def _cut(whole: Bytes, parameter: Parameter, layout: ParallelLayout, tp: int) -> Bytes:
    """A rank's piece, by padding the whole tensor and splitting it: not the arithmetic of `mappings.shards`."""
    if parameter.cut is None:
        return whole
    multiple = layout.tp * layout.vocab_multiple if parameter.padded else layout.tp
    widths = [(0, 0)] * whole.ndim
    widths[parameter.cut] = (0, -whole.shape[parameter.cut] % multiple)
    return np.split(np.pad(whole, widths), layout.tp, axis=parameter.cut)[tp]


def _whole(entry: TensorEntry) -> Bytes:
    """All bytes of a tensor, in its shape and one more axis for the bytes of an element."""
    return np.frombuffer(read_bytes(entry), np.uint8).reshape(*entry.shape, entry.itemsize)


def _tensors(
    report: Report,
    original: HfModel,
    count: int,
    findings: list[Finding],
    pairs: Callable[[], Iterator[tuple[TensorEntry, TensorEntry, Bytes]]],
    track: Tracker,
) -> None:
    problems = [found for found in judge(original) if found.severity is Severity.ERROR]
    if problems:
        _add(report, "source", problems, f"{original.directory} is no valid source", None)
        return
    differing = list(findings)
    compared = 0
    with track("comparing", count) as advance:
        for source, entry, expected in pairs():
            compared += 1
            advance(1)
            if (difference := _difference(source, entry, expected)) is not None:
                differing.append(finding("W013", difference, file=entry.path.name, tensor=entry.name))
    if compared != count:
        differing.append(finding("W001", f"only {compared} of {count} tensors could be compared"))
    _add(report, "source", differing, f"{compared} tensors compared byte for byte", compared)


def _difference(source: TensorEntry, entry: TensorEntry, expected: Bytes) -> str | None:
    if entry.dtype != source.dtype:
        return f"dtype {entry.dtype}, the source has {source.dtype}"
    if entry.shape != expected.shape[:-1]:
        return f"shape {list(entry.shape)}, the source gives {list(expected.shape[:-1])}"
    stored = _whole(entry)
    if np.array_equal(stored, expected):
        return None
    unequal = (stored != expected).any(axis=-1)
    first = [int(i) for i in np.argwhere(unequal)[0]]
    return f"{int(unequal.sum())} of {unequal.size} elements differ from the source, the first at {first}"


def _side_files(report: Report, directory: Path, source: Path) -> None:
    carried, _ = side_files(source, ())
    differing = []
    for path in carried:
        copy = directory / path.name
        if not copy.is_file():
            differing.append(finding("W010", f"missing; {source.name} has it", file=path.name))
        elif copy.read_bytes() != path.read_bytes():
            differing.append(finding("W013", "differs from the source", file=path.name))
    _add(report, "side files", differing, f"{len(carried)} files compared byte for byte", len(carried))


def _digests(directory: Path, manifest: Manifest, track: Tracker) -> list[Finding]:
    problems = []
    with track("hashing", sum(record.bytes for record in manifest.files.values())) as advance:
        for name, record in sorted(manifest.files.items()):
            path = directory / name
            if not path.is_file():
                problems.append(finding("W010", "missing", file=name))
            elif (found := hash_file(path)).bytes != record.bytes:
                problems.append(finding("W011", f"{found.bytes} bytes, expected {record.bytes}", file=name))
            elif found != record:
                problems.append(finding("W011", "SHA-256 differs from the manifest", file=name))
            advance(record.bytes)
    return problems


def _malformed(error: SafetensorsError) -> Finding:
    return finding("W012", error.problem, file=error.path.name, tensor=error.tensor)


def _add(report: Report, name: str, findings: list[Finding], message: str, compared: int | None) -> None:
    report.findings += findings
    failed = any(found.severity is Severity.ERROR for found in findings)
    report.stages.append(Stage(name, Verdict.FAIL if failed else Verdict.PASS, message, compared))
