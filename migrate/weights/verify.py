"""`msmigrate weights verify`: is this checkpoint what was written, and is it what its source gives?

The second question is answered without the planner, by `slow_path`: whole parameters are read, split and packed by
numpy, and compared with every stored tensor.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from mappings.families.atoms import Atom, Spelled
from mappings.formats.hf_directory import read_json
from mappings.formats.manifest import Manifest, hash_file, optimizer_file
from mappings.formats.safetensors import DTYPE_BITS, SafetensorsError
from mappings.rank_cuts import RankCuts
from migrate.progress import ByteCount, Tracker, quiet
from migrate.report import Finding, Report, Severity, Stage, Verdict
from migrate.weights.codes import finding
from migrate.weights.configuration import is_configuration
from migrate.weights.containers import sharded
from migrate.weights.containers.states import split_state, state_atom
from migrate.weights.conversion import DEFAULT_MEMORY_BUDGET, compare_replicas
from migrate.weights.opening import Hints, home_of, open_checkpoint
from migrate.weights.padding import not_zero
from migrate.weights.recorded import of_other_size, recorded
from migrate.weights.side_files import side_files
from migrate.weights.slow_path import Atoms, Bytes, gathered, rank_tensor, stored
from migrate.weights.tensors import Checkpoint, SourceTensor


def verify(
    path: Path,
    *,
    source: Path | None = None,
    hints: Hints | None = None,
    source_hints: Hints | None = None,
    cast: bool = False,
    track: Tracker = quiet,
) -> Report:
    """Judges a checkpoint of any container.

    Args:
        path: what to judge. Digests of its manifest, where it has one; headers against `config.json`; copies of one
            parameter against each other.
        source: a checkpoint of any container; then every tensor is derived from it again, and side files compared.
        hints: what `path` does not say by itself.
        source_hints: the same for the source.
        cast: accept another floating-point type than the source's, if every value is the source's, rounded.
        track: progress in bytes, or in tensors.

    Raises:
        UserError: there is no such checkpoint, or the source is malformed.
    """
    report = Report("weights verify", str(path))
    if not _is_whole(report, home_of(path), hints.container if hints else None, track):
        report.stages.append(Stage("headers", Verdict.SKIPPED, "files are missing"))
        return report
    try:
        checkpoint = open_checkpoint(path, hints)
    except SafetensorsError as error:
        malformed = finding("W012", error.problem, file=error.path.name, tensor=error.tensor)
        _add(report, "headers", [malformed], "a file is malformed", None)
        return report
    problems = [found for found in checkpoint.findings if found.severity is Severity.ERROR]
    notes = [found for found in checkpoint.findings if found.severity is not Severity.ERROR]
    report.facts["container"] = checkpoint.container
    message = f"{len(checkpoint.tensors)} tensors against config.json"
    if checkpoint.container == sharded.NAME:
        message += " and the layout"
    _add(report, "headers", [*problems, *notes], message, len(checkpoint.tensors))
    if problems:
        report.stages.append(Stage("source", Verdict.SKIPPED, "the headers are wrong"))
        return report
    compare_replicas(report, checkpoint, DEFAULT_MEMORY_BUDGET, track)
    if padding := not_zero(checkpoint):
        _add(report, "padding", padding, f"{len(padding)} tensors", None)
    if source is None:
        report.stages.append(Stage("source", Verdict.SKIPPED, "no source was given"))
        return report
    damaged = of_other_size(home_of(source), source_hints.container if source_hints else None)
    if any(found.severity is Severity.ERROR for found in damaged):
        _add(report, "source", damaged, f"{source} is not what was written", None)
        return report
    original = open_checkpoint(source, source_hints)
    _against(report, checkpoint, original, cast, track, (home_of(path), home_of(source)))
    return report


def _is_whole(report: Report, home: Path, container: str | None, track: Tracker) -> bool:
    """Files against the manifest, if there is one; whether none is missing."""
    known = recorded(home, container)
    if known is None:
        return True
    own, records = known
    problems = []
    with track("hashing", ByteCount(sum(record.bytes for record in records.values()))) as advance:
        for name, record in sorted(records.items()):
            file = home / name
            if not file.is_file():
                problems.append(finding("W010", "missing", file=name))
            elif (found := hash_file(file)).bytes != record.bytes:
                problems.append(finding("W011", f"{found.bytes} bytes, expected {record.bytes}", file=name))
            elif found != record:
                problems.append(finding("W011", "SHA-256 differs from the manifest", file=name))
            advance(record.bytes)
    _add(report, "digests", problems, f"{len(records)} files against their SHA-256", len(records))
    names = {*records, own}
    held = (file.relative_to(home).as_posix() for file in home.rglob("*") if file.is_file())
    report.findings += [finding("W016", "not in the manifest", file=name) for name in sorted(held) if name not in names]
    return all(found.code != "W010" for found in problems)


def _against(
    report: Report, checkpoint: Checkpoint, source: Checkpoint, cast: bool, track: Tracker, homes: tuple[Path, Path]
) -> None:
    problems = [found for found in source.findings if found.severity is Severity.ERROR]
    if problems:
        _add(report, "source", problems, f"{source.directory} is no valid source", None)
        return
    _side_files(report, *homes, lambda path: is_configuration(read_json(path), source, cast=cast))
    atoms = Atoms(source)
    derive = _Derivation(checkpoint, atoms).expected
    differing = _names(checkpoint, source)
    compared = 0
    casts: Counter[str] = Counter()
    with track("comparing", len(checkpoint.tensors)) as advance:
        for tensor in checkpoint.tensors:
            advance(1)
            absent = sorted({p.atom for p in tensor.stored.arrangement.pieces if p.atom not in atoms})
            before = {atoms.dtype(p.atom) for p in tensor.stored.arrangement.pieces if p.atom in atoms}
            if absent:
                found: str | None = f"the source does not have {absent[0]}"
            elif not cast and before - {tensor.stored.dtype}:
                found = f"dtype {tensor.stored.dtype}, the source has {', '.join(sorted(before))}"
            else:
                casts.update(f"{one} to {tensor.stored.dtype}" for one in before if one != tensor.stored.dtype)
                found = _difference(tensor, derive)
                compared += 1
            if found is not None:
                differing.append(finding("W013", found, file=tensor.stored.file, tensor=tensor.stored.name))
    if casts:
        report.facts["casts"] = dict(casts)
    _add(report, "source", differing, f"{compared} tensors compared byte for byte", compared)


def _names(checkpoint: Checkpoint, source: Checkpoint) -> list[Finding]:
    """Atoms that one side lacks; between two directories of one container and spelling, tensors."""
    ours, theirs = set(checkpoint.atoms), set(source.atoms)
    if checkpoint.container == source.container == "hf" and checkpoint.extra["spelling"] == source.extra["spelling"]:
        ours, theirs = ({t.stored.name for t in side.tensors} for side in (checkpoint, source))
    place = {tensor.stored.name: tensor.stored.file for tensor in checkpoint.tensors}
    weights = {
        name for name in theirs if not split_state(name)[0] or split_state(name)[0] in checkpoint.extra["states"]
    }
    counters = set(source.extra.get("counters", {}))
    name = source.directory.name
    lost = [finding("W001", f"missing; {name} has it", tensor=n) for n in sorted(weights - ours - counters)]
    return lost + [
        finding("W002", f"unexpected; {name} does not have it", file=place.get(n), tensor=n)
        for n in sorted(ours - theirs)
    ]


class _Derivation:
    """What each stored tensor of a checkpoint should hold, from the atoms of its source."""

    def __init__(self, checkpoint: Checkpoint, atoms: Atoms) -> None:
        self.atoms = atoms
        self.expected: Callable[[SourceTensor], Bytes] = self._gathered
        if checkpoint.container == sharded.NAME:
            assert checkpoint.family is not None
            manifest: Manifest = checkpoint.extra["manifest"]
            self.layout = manifest.layout
            self.cuts = RankCuts(checkpoint.family, checkpoint.config, self.layout)
            self.spelled = {spelled.name: spelled for spelled in self.cuts.spelled}
            self.owners = {file: rank for rank, file in sorted(manifest.weights.items(), reverse=True)}
            self.owners |= {optimizer_file(rank): rank for rank in sharded.state_owners(self.layout)}
            self.facts = {
                state_atom(state, name): replace(atom, name=state_atom(state, name))
                for state in ("", *checkpoint.extra["states"])
                for name, atom in self.cuts.atoms.items()
            }
            self.tied: dict[str, str] = checkpoint.extra["tied"]
            self.expected = self._of_rank

    def _gathered(self, tensor: SourceTensor) -> Bytes:
        return gathered(tensor.stored.arrangement, tensor.stored.dtype, self.atoms)

    def _of_rank(self, tensor: SourceTensor) -> Bytes:
        """By splitting and packing whole parameters, without `tensor.stored.arrangement`."""
        state, name = split_state(tensor.stored.name)
        spelled = _of_state(self.spelled[self.tied.get(name, name)], state)
        rank = self.owners[tensor.stored.file]
        facts: dict[str, Atom] = self.facts
        piece = rank_tensor(spelled, self.atoms, facts, self.layout, rank, self.cuts.dims, tensor.stored.dtype)
        if piece.ndim > 1 and (self.layout.zero == 3 or (state and self.layout.zero)):
            replicas = self.layout.dp
            if any(facts[atom].expert is not None for atom in spelled.atoms):
                replicas //= self.layout.ep
            padded = np.pad(piece, [(0, -piece.shape[0] % replicas), *[(0, 0)] * (piece.ndim - 1)])
            index = self.layout.coordinates(rank)["dp"] // (self.layout.dp // replicas)
            piece = np.split(padded, replicas)[index]
        return piece


def _of_state(spelled: Spelled, state: str) -> Spelled:
    def named(parts: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
        return tuple((part, state_atom(state, atom)) for part, atom in parts)

    return replace(
        spelled,
        atoms=tuple(state_atom(state, atom) for atom in spelled.atoms),
        single=named(spelled.single),
        experts=tuple(named(parts) for parts in spelled.experts),
    )


def _difference(tensor: SourceTensor, derive: Callable[[SourceTensor], Bytes]) -> str | None:
    expected, found = derive(tensor), stored(tensor)
    if found.shape != expected.shape:
        return f"shape {list(found.shape[:-1])}, the source gives {list(expected.shape[:-1])}"
    if np.array_equal(found, expected):
        return None
    assert found.shape[-1] == DTYPE_BITS[tensor.stored.dtype] // 8
    unequal = (found != expected).any(axis=-1)
    first = [int(i) for i in np.argwhere(unequal)[0]]
    return f"{int(unequal.sum())} of {unequal.size} elements differ from the source, the first at {first}"


def _side_files(report: Report, directory: Path, source: Path, is_config: Callable[[Path], bool]) -> None:
    carried, _ = side_files(source, ())
    differing = []
    for path in carried:
        copy = directory / path.name
        if not copy.is_file():
            differing.append(finding("W010", f"missing; {source.name} has it", file=path.name))
        elif copy.read_bytes() != path.read_bytes() and not (path.name == "config.json" and is_config(copy)):
            differing.append(finding("W013", "differs from the source", file=path.name))
    _add(report, "side files", differing, f"{len(carried)} files compared", len(carried))


def _add(report: Report, name: str, findings: list[Finding], message: str, compared: int | None) -> None:
    report.findings += findings
    failed = any(found.severity is Severity.ERROR for found in findings)
    report.stages.append(Stage(name, Verdict.FAIL if failed else Verdict.PASS, message, compared))
