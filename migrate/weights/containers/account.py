"""Weighs what a checkpoint holds against what its model implies; everything that is wrong is found at once.

A reader gives, file by file, the stored tensors and the expected ones. Every stored tensor is then one of: expected, a
state of an expected one, a second copy of a tied one, a counter, known to be harmless (listed), or a finding.
"""

from __future__ import annotations

import math
from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mappings.arrangement import Arrangement, Shape, viewed
from mappings.errors import UserError
from mappings.families import Family
from mappings.families.encodings import ENCODINGS
from mappings.formats.safetensors import TensorEntry
from migrate.report import Finding, Severity
from migrate.weights.codes import finding
from migrate.weights.containers.counters import NUMPY
from migrate.weights.containers.expected import Expected, check_count, padded
from migrate.weights.containers.holes import holes
from migrate.weights.containers.quantised import decoder
from migrate.weights.containers.states import COUNTERS, GRADIENTS, STATES, of_state, split_state, state_atom
from migrate.weights.tensors import Checkpoint, SourceTensor, Stored

SUFFIXES = [(encoding, suffix) for encoding, roles in ENCODINGS.items() for suffix in roles.values() if suffix]
FLOATS = ("F32", "F16", "BF16", "F64")


@dataclass(frozen=True)
class Held:
    """A stored tensor whose bytes do not simply lie one behind the other."""

    entry: TensorEntry
    """`offset` is that of the first byte."""
    spans: tuple[tuple[int, int], ...] = ()
    """(offset in the file, bytes) of its slices, in order; none where there is one slice."""
    strides: Shape | None = None
    """Elements of the file between neighbours along each axis; None where they lie row by row."""


@dataclass
class _Holder:
    """One rank, or all files together where nothing is cut: who should hold the expected tensors."""

    weights: Mapping[str, Expected]
    states: Mapping[str, Mapping[str, Expected]]
    partial: bool
    names: dict[str, str] = field(default_factory=dict)
    """Stored name to file."""
    present: set[tuple[str, str]] = field(default_factory=set)
    """(state, tensor of the spelling)."""


@dataclass
class _File:
    name: str
    entries: dict[str, TensorEntry]
    special: dict[str, Held]
    weights: Mapping[str, Expected]
    states: Mapping[str, Mapping[str, Expected]]


@dataclass
class Account:
    """What was found so far."""

    directory: Path
    family: Family
    config: Mapping[str, Any]
    tensors: list[SourceTensor] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    left_out: list[TensorEntry] = field(default_factory=list)
    tied: dict[str, str] = field(default_factory=dict)
    """Stored second copies: name to the parameter it repeats."""
    counters: dict[str, SourceTensor] = field(default_factory=dict)
    states: dict[str, None] = field(default_factory=dict)
    """States that are stored, in order of appearance."""
    _holders: dict[str, _Holder] = field(default_factory=dict)
    _dtypes: dict[str, dict[str, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_count(self.family, self.config)
        self._atoms = self.family.atoms(self.config)

    def file(
        self,
        name: str,
        entries: Iterable[TensorEntry | Held],
        weights: Mapping[str, Expected],
        states: Mapping[str, Mapping[str, Expected]] | None = None,
        *,
        holder: str = "",
        partial: bool = False,
        beside: dict[str, TensorEntry] | None = None,
    ) -> None:
        """Adds a file.

        Args:
            name: relative to the directory.
            entries: what it holds.
            weights: parameters its rank should hold, over all its files.
            states: the same for each optimizer state; None: as the weights.
            holder: the rank; one name for all files where nothing is cut.
            partial: whether other ranks may hold some of that instead.
            beside: tensors of all its holder's files, for values in low precision whose scales are in another one.
        """
        states = dict.fromkeys(STATES, weights) if states is None else states
        rank = self._holders.setdefault(holder, _Holder(weights, states, partial))
        file = _File(name, {}, {}, weights, states)
        for item in entries:
            entry = item.entry if isinstance(item, Held) else item
            if entry.name in rank.names:
                message = f"unexpected: is also stored in {rank.names[entry.name]}"
                self.findings.append(finding("W002", message, file=name, tensor=entry.name))
                continue
            rank.names[entry.name] = name
            file.entries[entry.name] = entry
            if isinstance(item, Held):
                file.special[entry.name] = item
        rank.present |= self._take(file, ChainMap(file.entries, beside or {}), rank.present)

    def close(self, container: str, extra: Mapping[str, Any]) -> Checkpoint:
        """The checkpoint, after the last file."""
        absent = self._missing()
        for parameter, kinds in sorted(self._dtypes.items()):
            if len(set(kinds.values())) > 1:
                text = ", ".join(sorted(set(kinds.values())))
                self.findings.append(finding("W017", f"dtype differs between files: {text}", tensor=parameter))
        atoms: dict[str, Shape] = {
            state_atom(state, atom.name): atom.shape
            for state in ("", *self.states)
            for atom in self._atoms.values()
            if (state, atom.name) not in absent
        }
        if not any(found.severity is Severity.ERROR for found in self.findings):
            self.findings += holes(atoms, self.tensors)
        atoms |= {name: source.stored.arrangement.shape for name, source in self.counters.items()}
        facts = {"tied": dict(self.tied), "states": tuple(self.states), "counters": dict(self.counters), **extra}
        return Checkpoint(
            self.directory,
            container,
            self.family,
            self.config,
            atoms,
            tuple(self.tensors),
            tuple(self.findings),
            tuple(self.left_out),
            facts,
        )

    def _take(
        self, file: _File, parts: Mapping[str, TensorEntry], before: set[tuple[str, str]]
    ) -> set[tuple[str, str]]:
        """(state, tensor) of everything recognised in a file.

        Args:
            file: to look at.
            parts: where values and scales of tensors in low precision may be.
            before: what other files of its holder gave.
        """
        found: set[tuple[str, str]] = set()
        companions = (name + suffix for name in file.entries for _, suffix in SUFFIXES if name + suffix in parts)
        encoded = dict(_encoded(self.family, {**file.entries, **dict.fromkeys(companions)}, file.weights))
        scaled = {expected.name for expected in encoded.values()}
        for name, entry in sorted(file.entries.items()):
            state, parameter = split_state(name)
            original = self.family.tied_to(parameter, self.config)
            held = file.states.get(state, {}) if state else file.weights
            expected = held.get(parameter) or held.get(original or "")
            if name in encoded or name in scaled:
                expected = encoded.get(name) or file.weights[name]
                if ("", expected.name) not in found and ("", expected.name) not in before:
                    self._decoded(file, parts, expected)
                found.add(("", expected.name))
            elif expected is not None and not expected.spelled.encoding:
                if expected.name != parameter:
                    self.tied[name] = expected.name
                self._plain(file, entry, expected, state)
                found.add((state, expected.name))
            elif name.startswith(GRADIENTS) or self.family.is_ignored(parameter, self.config):
                self._left_out(file, entry)
            elif name in COUNTERS and math.prod(entry.shape) == 1:
                self._counter(file, entry)
            else:
                reason = self.family.explain(parameter, self.config)
                message = f"unexpected: {entry.dtype} {list(entry.shape)}; {reason}"
                self.findings.append(finding("W002", message, file=file.name, tensor=name))
        self.states |= dict.fromkeys(state for state in STATES if any(state == one for one, _ in found))
        return found

    def _missing(self) -> set[tuple[str, str]]:
        """Findings for what its holder lacks; (state, atom) of optional tensors that the model goes without."""
        absent: set[tuple[str, str]] = set()
        anywhere = {found for rank in self._holders.values() for found in rank.present}
        for state in ("", *self.states):
            wanted = [r.states.get(state, {}) if state else r.weights for r in self._holders.values()]
            groups = {e.spelled.optional for some in wanted for e in some.values() if (state, e.name) in anywhere}
            for (holder, rank), some in zip(self._holders.items(), wanted, strict=True):
                for name, expected in some.items():
                    if (state, name) in (anywhere if rank.partial else rank.present):
                        continue
                    if expected.spelled.optional and expected.spelled.optional not in groups:
                        absent |= {(state, atom) for atom in expected.spelled.atoms}
                        continue
                    message = f"missing; shape {list(expected.arrangement.shape)} expected"
                    tensor = f"{state}.{name}" if state else name
                    self.findings.append(finding("W001", message, file=holder or None, tensor=tensor))
        return absent

    def _plain(self, file: _File, entry: TensorEntry, expected: Expected, state: str) -> None:
        arrangement = expected.arrangement
        if entry.shape != arrangement.shape:
            grown = padded(expected, entry.shape, self._atoms)
            special = file.special.get(entry.name)
            # Of a view, rows behind the vocabulary could not be told from other memory.
            if grown is None or (special is not None and special.strides is not None):
                message = f"shape {list(entry.shape)}, {list(arrangement.shape)} expected from config.json"
                self.findings.append(finding("W003", message, file=file.name, tensor=entry.name))
                return
            self.findings.append(padding_note(entry.name, entry.shape, expected, file.name))
            arrangement = grown
        if entry.dtype not in FLOATS:
            message = f"dtype {entry.dtype}, supported are {', '.join(FLOATS)}"
            self.findings.append(finding("W004", message, file=file.name, tensor=entry.name))
            return
        self._dtypes.setdefault(f"{state}.{expected.name}" if state else expected.name, {})[file.name] = entry.dtype
        self._add(file, entry, of_state(arrangement, state))

    def _add(self, file: _File, entry: TensorEntry, arrangement: Arrangement) -> None:
        held = file.special.get(entry.name, Held(entry))
        if held.strides is not None:
            arrangement = viewed(arrangement, held.strides)
        if len(held.spans) < 2:
            stored = Stored(file.name, entry.name, entry.dtype, arrangement)
            self.tensors.append(SourceTensor(stored, entry.path, entry.offset, is_view=held.strides is not None))
            return
        flat, start = arrangement.reshape(-1), 0
        for number, (offset, nbytes) in enumerate(held.spans, 1):
            count = nbytes // entry.itemsize
            name = f"{entry.name} (slice {number} of {len(held.spans)})"
            stored = Stored(file.name, name, entry.dtype, flat.slice(0, start, start + count))
            self.tensors.append(SourceTensor(stored, entry.path, offset))
            start += count

    def _decoded(self, file: _File, parts: Mapping[str, TensorEntry], expected: Expected) -> None:
        try:
            made, dtype = decoder(self.family, self.config, parts, expected)
        except UserError as error:
            self.findings.append(finding("W004", str(error), file=file.name, tensor=expected.name))
            return
        stored = Stored(file.name, expected.name, dtype, expected.arrangement)
        first = made.parts[0]
        self._dtypes.setdefault(expected.name, {})[file.name] = dtype
        self.tensors.append(SourceTensor(stored, first.path, first.offset, made))

    def _counter(self, file: _File, entry: TensorEntry) -> None:
        if entry.dtype not in NUMPY:
            message = f"dtype {entry.dtype}, supported for counters are {', '.join(NUMPY)}"
            self.findings.append(finding("W004", message, file=file.name, tensor=entry.name))
            return
        first = self.counters.get(entry.name)
        # Every rank stores the same; like any copies they are compared before the first one is used.
        whole = Arrangement.of(entry.name, entry.shape if first is None else first.stored.arrangement.shape)
        stored = Stored(file.name, entry.name, entry.dtype, whole.reshape(*entry.shape))
        self.tensors.append(SourceTensor(stored, entry.path, entry.offset))
        if first is None:
            self.counters[entry.name] = self.tensors[-1]

    def _left_out(self, file: _File, entry: TensorEntry) -> None:
        self.left_out.append(entry)
        message = f"left out: {entry.dtype} {list(entry.shape)}"
        self.findings.append(finding("W006", message, file=file.name, tensor=entry.name))


def _encoded(family: Family, names: Iterable[str], expected: Mapping[str, Expected]) -> Iterator[tuple[str, Expected]]:
    """Stored names that are a part of a tensor in low precision: in its own form, or in any of the family's."""
    for name in names:
        for encoding, suffix in SUFFIXES:
            if not name.endswith(suffix):
                continue
            whole = expected.get(name[: -len(suffix)])
            if whole is None:
                continue
            own = whole.spelled.encoding
            matrix = len(whole.arrangement.shape) == 2
            if own == encoding or (not own and matrix and encoding in family.encodings):
                yield name, whole


def padding_note(name: str, shape: Shape, expected: Expected, file: str | None = None) -> Finding:
    """That a stored vocabulary is longer than the model's."""
    message = f"{list(shape)} holds the {list(expected.arrangement.shape)} of config.json and padding"
    return finding("W021", message, file=file, tensor=name)
