"""The files of a model directory that are no weights: which are carried over, and which are left."""

from __future__ import annotations

from collections.abc import Collection
from fnmatch import fnmatch
from pathlib import Path

from mappings.errors import UserError
from mappings.formats.hf_directory import INDEX
from mappings.formats.manifest import NAME as MANIFEST

CARRIED = (
    "config.json", "generation_config.json", "tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab.*",
    "merges.txt", "chat_template*", "*.model", "*.tiktoken",
)  # fmt: skip
WEIGHTS = (".safetensors", ".bin", ".pt", ".pth")  # never carried, whatever the rest of the name


def side_files(directory: Path, used: Collection[str]) -> tuple[list[Path], list[str]]:
    """Files to carry over, and the names of all else that is not used, both sorted. Hidden names are passed over.

    Args:
        directory: a Hugging Face or a sharded directory.
        used: names of its weights files that are read.

    Raises:
        UserError: a carried name is a link that leads nowhere or out of the directory. The file store of the Hugging
            Face cache (`blobs`, beside `snapshots`) is allowed, for that is how its directories are made.
    """
    carried, left = [], []
    root = directory.resolve()
    for path in sorted(directory.iterdir()):
        if path.name in used or path.name in (INDEX, MANIFEST) or path.name.startswith("."):
            continue
        # A manifest has no place for names that cannot be printed.
        if (
            path.name.endswith(WEIGHTS)
            or not path.name.isprintable()
            or not any(fnmatch(path.name, pattern) for pattern in CARRIED)
        ):
            left.append(path.name)
            continue
        if path.is_symlink():
            _check_link(path, root)
        if path.is_file():
            carried.append(path)
        else:
            left.append(path.name)
    return carried, left


def _check_link(path: Path, root: Path) -> None:
    target = path.resolve()
    if not target.is_file():
        raise UserError(f"{path}: is a link that leads to no file ({target}); restore the file")
    blobs = root.parent.parent / "blobs"
    if root not in target.parents and not (root.parent.name == "snapshots" and blobs in target.parents):
        raise UserError(f"{path}: is a link out of the directory ({target}); put a copy of the file in its place")
