"""Container `mindspore`: full weights as MindSpore unifies them, what `load_distributed_checkpoint` cuts online.

Files of parts, `param_name_map.json`, and `hyper_param.safetensors` with what is no parameter.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from mappings.errors import UserError
from mappings.families import Family
from mappings.formats.param_name_map import HYPER, param_name_map_text, part_file, read_param_name_map
from mappings.formats.param_name_map import NAME as MAP
from mappings.formats.regular_files import is_there
from mappings.formats.safetensors import SafetensorsError, read_header
from migrate.weights.containers.account import Account
from migrate.weights.containers.content import Content, aligned, by_size, nbytes
from migrate.weights.containers.expected import detect_spelling, whole
from migrate.weights.containers.stored_files import (
    SAFETENSORS,
    metadata_of,
    model_of,
    read_file,
    spelling_of,
    state_style,
)
from migrate.weights.tensors import Checkpoint, TargetFile

NAME = "mindspore"
PART_BYTES = 3 << 30  # as MindSpore divides
CRC, CRC_DIGITS = "crc_num", 10
CHUNK = 4 << 20
INTEGERS = frozenset({"I8", "U8", "I16", "U16", "I32", "U32", "I64", "U64"})


def read(
    directory: Path,
    family: Family | None = None,
    config: Mapping[str, Any] | None = None,
    spelling: str | None = None,
) -> Checkpoint:
    """A directory of full weights, from its headers.

    Args:
        directory: with safetensors.
        family: of the model; None: by its `config.json`.
        config: `config.json`; None: that of the directory.
        spelling: of the names; None: as the files say, else by the names.

    Raises:
        UserError: a file is missing or malformed, the map disagrees with the files, or the model is unknown.
    """
    family, config = model_of(directory, family, config)
    names = read_param_name_map(directory / MAP) if is_there(directory / MAP) else None
    files = sorted(path.name for path in directory.glob("*" + SAFETENSORS))
    if names is not None:
        listed = set(names.values())
        if lost := sorted(listed - set(files)):
            raise UserError(f"{directory / MAP}: names {lost[0]!r}, which is missing")
        if stray := [file for file in files if file not in listed and file != HYPER]:
            raise UserError(f"{directory}: {stray[0]} is not in {MAP}; remove it or complete the map")
    if not files:
        raise UserError(f"{directory}: no safetensors in it")
    found = {file: read_file(directory / file) for file in files}
    shapes = {entry.name: entry.shape for file in found.values() for entry in file.entries}
    spelling = detect_spelling(family, config, shapes, directory, spelling or spelling_of(found.values()))
    expected = whole(family, config, spelling)
    account = Account(directory, family, config)
    for file, held in found.items():
        if names is not None and file != HYPER:
            _check_map(directory / file, {entry.name for entry in held.entries}, names)
        account.file(file, held.items, expected)
    return account.close(NAME, {"spelling": spelling})


def layout(content: Content, *, part_bytes: int = PART_BYTES, crc: bool = False) -> list[TargetFile]:
    """Files of full weights.

    Args:
        content: what to write.
        part_bytes: bytes per file.
        crc: whether each file shall have a place for MindSpore's checksum, which `finish` fills.

    Raises:
        UserError: a tensor cannot be made, or a checksum is asked for where MindSpore cannot compute it.
    """
    style = state_style(content.spelling)
    metadata = metadata_of(content.spelling) | ({CRC: "0" * CRC_DIGITS} if crc else {})
    tensors = [(expected.spelled, expected.arrangement) for expected in content.whole.values()]
    files = []
    for number, group in enumerate(by_size(content.stored("", tensors, style, ("", *content.states)), part_bytes)):
        file = part_file(number)
        files.append(TargetFile(file, aligned(replace(tensor, file=file) for tensor in group), metadata))
    if crc and any(tensor.dtype == "BF16" for file in files for tensor in file.tensors):
        raise UserError("MindSpore cannot compute its checksum of BF16 tensors, so a file must not claim one")
    if content.counters:
        files.append(TargetFile(HYPER, aligned(content.numbers(HYPER)), metadata))
    return files


def finish(directory: Path, files: Iterable[TargetFile]) -> list[Path]:
    """Writes the map of names, and fills in checksums; returns what was written or changed."""
    files = list(files)
    parts = [file for file in files if file.name != HYPER]
    names = {tensor.name: file.name for file in parts for tensor in file.tensors}
    total = sum(nbytes(tensor) for file in parts for tensor in file.tensors)
    (directory / MAP).write_text(param_name_map_text(names, total), encoding="utf-8")
    changed = [directory / MAP]
    for file in files:
        if CRC in file.metadata:
            write_crc(directory / file.name)
            changed.append(directory / file.name)
    return changed


def checksum(path: Path) -> int:
    """MindSpore's CRC-32 over names and data of a file, by name.

    For an integer without axes MindSpore takes `bytes(array)`, which is as many zeros as the number says.

    Raises:
        SafetensorsError: the file is malformed, or holds a negative such number, at which MindSpore fails.
    """
    crc = 0
    with path.open("rb") as file:
        for entry in sorted(read_header(path)[0], key=lambda entry: entry.name):
            crc = zlib.crc32(entry.name.encode(), crc)
            file.seek(entry.offset)
            left = entry.nbytes
            if zeros := not entry.shape and entry.dtype in INTEGERS:
                left = int.from_bytes(file.read(left), "little", signed=entry.dtype.startswith("I"))
                if left < 0:
                    raise SafetensorsError(path, f"{left} has no place in MindSpore's checksum", entry.name)
            while left:
                count = min(CHUNK, left)
                chunk = bytes(count) if zeros else file.read(count)
                if not chunk:
                    raise SafetensorsError(path, f"ends {left} bytes early", entry.name)
                crc = zlib.crc32(chunk, crc)
                left -= len(chunk)
    return crc


def damaged(path: Path) -> bool:
    """Whether a file differs from its recorded checksum; False where it has none.

    Raises:
        SafetensorsError: the file is malformed.
    """
    recorded = read_header(path)[1].get(CRC)
    if recorded is None:
        return False
    if not recorded.isdecimal():
        raise SafetensorsError(path, f"{CRC} {recorded!r} is no number")
    return int(recorded) != checksum(path)


def write_crc(path: Path) -> None:
    """Fills in the checksum where the header has a place for it."""
    place = f'"{CRC}":"{"0" * CRC_DIGITS}"'.encode()
    with path.open("r+b") as file:
        header = file.read(int.from_bytes(file.read(8), "little"))
        at = header.index(place) + 8
        file.seek(at)
        file.write(f'"{CRC}":"{checksum(path):0{CRC_DIGITS}d}"'.encode())


def _check_map(path: Path, held: set[str], names: Mapping[str, str]) -> None:
    """Refuses a file whose tensors are not those that the map places in it."""
    for name in sorted(held):
        if names.get(name) != path.name:
            where = names.get(name)
            raise SafetensorsError(path, f"{MAP} places it in {where!r}" if where else f"is not in {MAP}", name)
    for name, file in names.items():
        if file == path.name and name not in held:
            raise SafetensorsError(path, f"{MAP} places it here, but it is not", name)
