"""Files that MindSpore writes, of either format, and what the readers of its containers have in common."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mappings.errors import UserError
from mappings.families import Family, family_for_config
from mappings.families.family import HF
from mappings.formats.hf_directory import read_config
from mappings.formats.mindspore_ckpt_reader import read_ckpt
from mappings.formats.safetensors import DTYPE_BITS, TensorEntry, read_header
from migrate.weights.containers.account import Held
from migrate.weights.containers.states import MINDSPORE, TORCH

SAFETENSORS, CKPT = ".safetensors", ".ckpt"
SPELLING = "msmigrate.spelling"
REDUNDANCY = "remove_redundancy"


@dataclass(frozen=True)
class MindSporeFile:
    """What one file holds."""

    items: tuple[TensorEntry | Held, ...]
    metadata: Mapping[str, str]

    @property
    def entries(self) -> list[TensorEntry]:
        """Every tensor."""
        return [item.entry if isinstance(item, Held) else item for item in self.items]

    @property
    def removed(self) -> bool:
        """Whether the writer left out what other ranks hold, too."""
        return self.metadata.get(REDUNDANCY) == "True"


def metadata_of(spelling: str) -> dict[str, str]:
    """`__metadata__` of the files that we write: MindSpore's mark, and how to read the names."""
    return {"format": "ms", SPELLING: spelling}


def spelling_of(files: Iterable[MindSporeFile]) -> str | None:
    """The spelling that files say they have."""
    return next((file.metadata[SPELLING] for file in files if SPELLING in file.metadata), None)


def read_file(path: Path) -> MindSporeFile:
    """Headers of a `.safetensors` or a `.ckpt`; texts in the latter are kept as metadata.

    Raises:
        UserError: the file is malformed.
    """
    if path.suffix != CKPT:
        entries, metadata = read_header(path)
        return MindSporeFile(tuple(entries), metadata)
    if path.is_file() and path.stat().st_size == 0:  # a rank all of whose tensors are in the files of others
        return MindSporeFile((), {})
    ckpt = read_ckpt(path)
    items = []
    for tensor in ckpt.tensors:
        nbytes = math.prod(tensor.shape) * DTYPE_BITS[tensor.dtype] // 8
        entry = TensorEntry(tensor.name, path, tensor.dtype, tensor.shape, tensor.spans[0][0], nbytes)
        items.append(Held(entry, tensor.spans))
    return MindSporeFile(tuple(items), ckpt.texts)


def model_of(
    directory: Path, family: Family | None, config: Mapping[str, Any] | None
) -> tuple[Family, Mapping[str, Any]]:
    """Family and `config.json` of a checkpoint: those given, else those of the directory.

    Raises:
        UserError: there is no `config.json`, which MindSpore's own tools do not write.
    """
    if config is None:
        if not directory.is_dir() or not (directory / "config.json").is_file():
            raise UserError(f"{directory}: no config.json in it; give that of the model")
        config = read_config(directory)
    return family or family_for_config(config), config


def state_style(spelling: str) -> int:
    """How optimizer state is named beside the tensors of a spelling."""
    return TORCH if spelling == HF else MINDSPORE
