"""Weights of a converted repository's own modules: names and layouts from the code converter's table, no guesses."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mappings.arrangement import Arrangement
from mappings.errors import UserError
from mappings.formats.weights_table import Expected, WeightsTable
from migrate.report import Finding
from migrate.weights.codes import finding
from migrate.weights.containers.state_dict import Entry, read_state_dict
from migrate.weights.tensors import Checkpoint, Stored, TargetFile

FILE = "model.safetensors"
FLOATS = ("F64", "F32", "F16", "BF16")


def read(
    source: Path,
    table: Path,
    *,
    module: str | None = None,
    of_class: str | None = None,
    arguments: Mapping[str, Any] | None = None,
    key: str | None = None,
) -> Checkpoint:
    """The tensors of a state dict, understood by the table. Atoms have PyTorch's names and shapes.

    Args:
        source: file or directory with the state dict, see `read_state_dict`.
        table: `weights_table.json` of the converted repository.
        module: name of a module that was built by a recipe; or
        of_class: name of a class, with
        arguments: those of its constructor.
        key: where in a pickled file the state dict is.

    Raises:
        UserError: a file is malformed, or the table does not know the module or class to the end.
    """
    known = WeightsTable.read(table)
    if (module is None) == (of_class is None):
        built = ", ".join(repr(entry.name) for entry in known.modules) or "none"
        classes = ", ".join(entry.name for entry in known.classes) or "none"
        raise UserError(f"{table}: give a module that was built ({built}) or a class with its arguments ({classes})")
    if module is not None:
        expected = known.of_module(module).state()
    else:
        assert of_class is not None
        expected = known.of_class(of_class).state(arguments or {})
    stored = read_state_dict(source, key)
    short = known.unwrapped(list(stored))
    entries = {short[name]: entry for name, entry in stored.items()}
    owners = {name: _owner(name, expected) for name in expected}
    findings = _judge(entries, expected, owners)
    tensors = [
        entry.holding(owners[name])
        for name, entry in entries.items()
        if name in expected and expected[name].shape in (None, entry.shape)
    ]
    atoms = {owners[name]: entry.shape for name, entry in entries.items() if name in expected}
    # The first of tied names gives its dtype; a second copy has the same bytes or is reported by the engine.
    dtypes = {owners[name]: entry.dtype for name, entry in reversed(entries.items()) if name in expected}
    extra = {"expected": expected, "owners": owners, "dtypes": dtypes}
    directory = source if source.is_dir() else source.parent
    return Checkpoint(directory, "table", None, {}, atoms, tuple(tensors), tuple(findings), (), extra)


def layout(checkpoint: Checkpoint) -> list[TargetFile]:
    """The file for the converted cell: each parameter once, under the name and in the layout it has there."""
    expected: Mapping[str, Expected] = checkpoint.extra["expected"]
    owners, dtypes = checkpoint.extra["owners"], checkpoint.extra["dtypes"]
    tensors = []
    for name, entry in expected.items():
        if owners[name] != name or name not in checkpoint.atoms:
            continue
        arrangement = Arrangement.of(name, checkpoint.atoms[name])
        if entry.permutation is not None:
            arrangement = arrangement.transpose(*entry.permutation)
        tensors.append(Stored(FILE, entry.converted, dtypes[name], arrangement))
    return [TargetFile(FILE, tuple(tensors), {"format": "ms"})]


def _owner(name: str, expected: Mapping[str, Expected]) -> str:
    """The name under which a tied tensor is kept."""
    seen = {name}
    while (same := expected[name].same_as) is not None:
        if same in seen or same not in expected:
            raise UserError(f"the table ties {name!r} to {same!r}, which leads nowhere")
        seen.add(same)
        name = same
    return name


def _judge(entries: Mapping[str, Entry], expected: Mapping[str, Expected], owners: Mapping[str, str]) -> list[Finding]:
    held = {owners[name] for name in entries if name in expected}
    findings = [
        finding("W001", f"missing; shape {_text(expected[name].shape)} expected", tensor=name)
        for name in expected
        if owners[name] == name and name not in held
    ]
    for name, entry in entries.items():
        said = expected.get(name)
        place = {"file": entry.path.name, "tensor": entry.name}
        if said is None:
            findings.append(finding("W002", f"unexpected: {entry.dtype} {list(entry.shape)}", **place))
        elif said.shape is not None and said.shape != entry.shape:
            findings.append(finding("W003", f"shape {list(entry.shape)}, the table says {list(said.shape)}", **place))
        elif said.dtype is not None and said.dtype != entry.dtype and not {said.dtype, entry.dtype} <= set(FLOATS):
            findings.append(finding("W004", f"dtype {entry.dtype}, the table says {said.dtype}", **place))
    return findings


def _text(shape: tuple[int, ...] | None) -> str:
    return "of any size" if shape is None else str(list(shape))
