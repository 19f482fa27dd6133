"""Container `ckpt`: one protobuf file of full weights, as `mindspore.save_checkpoint` writes it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mappings.errors import UserError
from mappings.families import Family
from mappings.formats.mindspore_ckpt import crc_trailer
from migrate.weights.containers.account import Account
from migrate.weights.containers.content import Content
from migrate.weights.containers.expected import detect_spelling, whole
from migrate.weights.containers.stored_files import CKPT, model_of, read_file, state_style
from migrate.weights.tensors import Checkpoint, TargetFile

NAME = "ckpt"
FILE = "model.ckpt"


def read(
    path: Path,
    family: Family | None = None,
    config: Mapping[str, Any] | None = None,
    spelling: str | None = None,
) -> Checkpoint:
    """One file; `config.json` is looked for beside it.

    Args:
        path: the file, or a directory with one.
        family: of the model; None: by its `config.json`.
        config: `config.json`; None: that beside the file.
        spelling: of the names; None: by the names.

    Raises:
        UserError: the file is malformed, or the model is unknown.
    """
    if path.is_dir():
        found = sorted(path.glob("*" + CKPT))
        if len(found) != 1:
            raise UserError(f"{path}: {len(found)} .ckpt files in it, give the one that is meant")
        path = found[0]
    family, config = model_of(path.parent, family, config)
    file = read_file(path)
    shapes = {entry.name: entry.shape for entry in file.entries}
    spelling = detect_spelling(family, config, shapes, path, spelling)
    account = Account(path.parent, family, config)
    account.file(path.name, file.items, whole(family, config, spelling))
    return account.close(NAME, {"spelling": spelling, "texts": file.metadata})


def layout(content: Content, name: str = FILE) -> list[TargetFile]:
    """The one file; a `.ckpt` has no alignment to keep, so that tensors stand in the order of the model."""
    style = state_style(content.spelling)
    tensors = [(expected.spelled, expected.arrangement) for expected in content.whole.values()]
    stored = (*content.stored(name, tensors, style, ("", *content.states)), *content.numbers(name))
    return [TargetFile(name, stored, {}, "ckpt")]


def finish(directory: Path, name: str = FILE, *, crc: bool = False) -> list[Path]:
    """Appends MindSpore's checksum if it is asked for; returns what was changed."""
    if not crc:
        return []
    path = directory / name
    trailer = crc_trailer(path, path.stat().st_size)
    with path.open("ab") as file:
        file.write(trailer)
    return [path]
