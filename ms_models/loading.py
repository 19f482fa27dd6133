"""Fills a model from a Hugging Face directory or a sharded checkpoint; a rank reads only its own pieces."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from mindspore import Parameter, Tensor

from mappings.assembly import Assembly, ReplicasDifferError, holders_of, needs, sources_of
from mappings.completeness import LISTED as LISTED
from mappings.completeness import mismatches
from mappings.errors import UserError
from mappings.families import Family
from mappings.formats import manifest as manifests
from mappings.formats.hf_directory import SINGLE, read_tensors
from mappings.formats.manifest import Manifest, hash_file
from mappings.formats.safetensors import TensorEntry, read_header
from mappings.holdings import Held
from mappings.layout import ParallelLayout
from mappings.rank_cuts import RankCuts
from mappings.stored import Stored, recognise
from ms_models.families.pretrained import Pretrained
from ms_models.parallel.mesh import Mesh
from ms_models.saving import Origin

READABLE: dict[str, np.dtype[Any]] = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype("<u2")}


@dataclass(frozen=True)
class Source:
    """The tensors of a checkpoint, those of one rank where it is sharded."""

    directory: Path
    family: Family
    config: Mapping[str, Any]
    entries: dict[str, TensorEntry]
    stored: Stored
    is_sharded: bool
    beside: tuple[Source, ...] = ()
    """Other ranks' tensors, which have the rest: where replicas divide the parameters, or the layout was another."""

    def has_any(self, name: str, atoms: Collection[str]) -> bool:
        """Whether a tensor has some of these atoms, or is not known at all, which somebody has to complain about."""
        held = self.stored.tensors.get(name)
        return held is None or any(piece.atom in atoms for piece in held.pieces)

    @property
    def origin(self) -> Origin:
        """What a later save needs to know; pieces of a sharded checkpoint go into one file."""
        stored, entries = self.stored, self.entries
        if self.is_sharded:
            for part in self.beside:
                entries = {**part.entries, **entries}
            whole = self.family.spelling(self.config, stored.spelling)
            shapes = {name: () for name in (spelled.name for spelled in whole) if name in entries}
            stored = recognise(self.family, self.config, shapes, self.directory)
        tensors = {name: arrangement for name, arrangement in stored.tensors.items() if name in entries}
        files = {name: SINGLE if self.is_sharded else entries[name].path.name for name in tensors}
        return Origin(self.directory, files, {name: entries[name].dtype for name in tensors}, tensors)


def open_source(
    directory: Path, mesh: Mesh, family: Family, config: Mapping[str, Any], *, recut: bool = False
) -> Source:
    """Finds the tensors this rank loads from.

    Args:
        directory: of the checkpoint.
        mesh: of this rank.
        family: of the model.
        config: its `config.json`.
        recut: whether one that is sharded for another layout is put together from the files of all its ranks.

    Raises:
        UserError: no checkpoint, a damaged one, or one sharded for another layout or family.
    """
    if not (directory / manifests.NAME).is_file():
        entries = read_tensors(directory)
        shapes = {name: entry.shape for name, entry in entries.items()}
        return Source(directory, family, config, entries, recognise(family, config, shapes, directory), False)
    manifest = Manifest.read(directory)
    if manifest.family != family.name:
        raise UserError(f"{directory}: manifest says family {manifest.family!r}, config.json {family.name!r}")
    layout = manifest.layout
    if recut and layout != mesh.layout:
        return _open_recut(directory, manifest, mesh, family, config)
    _check_layout(directory, layout, mesh.layout)
    here = mesh.coordinates
    rank = layout.rank(tp=here["tp"], pp=here["pp"], dp=here["dp"] % layout.ep)
    ranks = [rank, *(other for other in layout.group(rank, "dp") if other != rank)] if layout.zero == 3 else [rank]
    first, *others = [_open_rank(directory, manifest, family, config, one) for one in ranks]
    return replace(first, beside=tuple(others))


def _open_recut(directory: Path, manifest: Manifest, mesh: Mesh, family: Family, config: Mapping[str, Any]) -> Source:
    """The files of those ranks that have something of this one's, whatever the layouts are."""
    stored, cuts = manifest.layout, RankCuts(family, config, manifest.layout)
    mine = [arrangement for _, arrangement in RankCuts(family, config, mesh.layout).tensors(mesh.rank)]
    atoms = {piece.atom for arrangement in mine for piece in arrangement.pieces}
    parts = []
    for owner in dict.fromkeys(stored.weight_owner(rank) for rank in range(stored.world_size)):
        if needs(mine, {spelled.name: arrangement for spelled, arrangement in cuts.tensors(owner)}):
            part = _open_rank(directory, manifest, family, config, owner)
            parts.append(replace(part, entries={n: e for n, e in part.entries.items() if part.has_any(n, atoms)}))
    optional = frozenset(group for part in parts for group in part.stored.optional)
    first, *others = [replace(part, stored=replace(part.stored, optional=optional)) for part in parts]
    return replace(first, beside=tuple(others))


def _open_rank(directory: Path, manifest: Manifest, family: Family, config: Mapping[str, Any], rank: int) -> Source:
    file = manifest.weights.get(rank)
    if file is None or file not in manifest.files:
        raise UserError(f"{directory / manifests.NAME}: names no weights for rank {rank}")
    path = directory / file
    if not path.is_file():
        raise UserError(f"{path}: missing, the manifest names it")
    if hash_file(path) != manifest.files[file]:
        raise UserError(f"{path}: damaged, its size or SHA-256 is not the manifest's; restore or convert it again")
    entries = {entry.name: entry for entry in read_header(path)[0]}
    shapes = {name: entry.shape for name, entry in entries.items()}
    return Source(
        directory, family, config, entries, recognise(family, config, shapes, path, manifest.layout, rank), True
    )


def _check_layout(directory: Path, stored: ParallelLayout, wanted: ParallelLayout) -> None:
    for axis in ("tp", "pp", "vpp", "ep", "vocab_multiple"):  # dp and cp replicate weights, so they are free
        have, want = getattr(stored, axis), getattr(wanted, axis)
        if have != want:
            raise UserError(
                f"{directory}: sharded for {axis}={have}, this run has {axis}={want}; "
                "start from the Hugging Face directory, or convert it for this layout"
            )


def load_weights(model: Pretrained, source: Source, new: Mapping[str, np.ndarray] | None = None) -> None:
    """Sets every parameter of `model` from `source`, as fp32.

    Args:
        model: the model to fill.
        source: see `open_source`.
        new: this rank's values of parameters that the source does not have and is not expected to have.

    Raises:
        UserError: one line with every missing, unexpected, misshapen or unreadable tensor. Nothing is loaded then.
    """
    new = new or {}
    wanted = {name: held for name, held in model.held.items() if name not in new}
    needed = [(part, _needed(wanted, part.stored)) for part in (source, *source.beside)]
    if problems := list(dict.fromkeys(p for part, names in needed for p in _compare(names, part))):
        raise UserError(f"{source.directory}: {'; '.join(problems)}")
    parameters: dict[str, Parameter] = {parameter.name: parameter for parameter in model.get_parameters()}
    for name, held in model.held.items():
        if name in new:
            parameters[name].set_data(Tensor(new[name]))
            continue
        parts = [({one: part.entries[one] for one in names[name]}, part.stored) for part, names in needed]
        parameters[name].set_data(Tensor(read_piece(held, parts)))
    model.origin = source.origin


def _needed(held: Mapping[str, Held], stored: Stored) -> dict[str, list[str]]:
    """For each tensor in memory, the stored ones that have parts of it."""
    owners = holders_of(stored.tensors)
    return {name: sources_of(one.arrangement, owners) for name, one in held.items()}


def _compare(needed: Mapping[str, list[str]], source: Source) -> list[str]:
    wanted = dict.fromkeys(name for names in needed.values() for name in names)
    # A group of tensors that is there in part is missing the rest, whoever needs it.
    read = wanted if source.is_sharded else None
    return mismatches(source.entries, source.stored, source.family, source.config, read)


def read_piece(held: Held, parts: Sequence[tuple[Mapping[str, TensorEntry], Stored]]) -> np.ndarray:
    """One rank's tensor as fp32, padding included.

    Files are mapped, so that only the pages of the piece are read. bf16 widens exactly: its bits are the upper half of
    an fp32.

    Args:
        held: the tensor.
        parts: stored tensors that have parts of it, F32, F16 or BF16, and what those consist of.

    Raises:
        UserError: copies of the same part differ.
    """
    piece = Assembly(np.zeros(held.shape, np.float32), held.arrangement)
    for entries, stored in parts:
        for name, entry in entries.items():
            mapped = np.memmap(entry.path, READABLE[entry.dtype], "r", offset=entry.offset, shape=entry.shape)
            try:
                piece.add(mapped, stored.tensors[name], partial(to_float32, dtype=entry.dtype))
            except ReplicasDifferError as error:
                raise UserError(
                    f"{entry.path}: {name} differs from the copy that another rank saved; one of the two is wrong, so "
                    "that this checkpoint cannot be cut anew"
                ) from error
    assert not piece.missing, f"{held.name}: {piece.missing} elements of {piece.target.size} are not stored"
    return piece.target


def to_float32(values: np.ndarray, dtype: str) -> np.ndarray:
    """A fresh contiguous fp32 array of stored values; `dtype` is the safetensors name (BF16 comes as uint16)."""
    if dtype == "BF16":
        return (values.astype(np.uint32) << 16).view(np.float32)
    return np.array(values, np.float32, order="C")
