"""`rank_N` folders: where MindSpore, and MindFormers before 2.x, keep the files of each rank and the strategies."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mappings.errors import UserError
from mappings.formats.hf_directory import read_json
from mappings.formats.regular_files import is_there
from migrate.weights.containers.stored_files import CKPT, SAFETENSORS

RANK = re.compile("rank_(0|[1-9][0-9]*)")
STRATEGY_FOLDER, STRATEGY = "strategy", "ckpt_strategy_rank_{rank}.ckpt"
STRATEGY_NAME = re.compile(r".*ckpt_strategy_rank_[0-9]+\.(ckpt|json)")
LEGACY = ("checkpoint", "checkpoint_network")
META = "meta.json"


@dataclass(frozen=True)
class Naming:
    """How files are called."""

    prefix: str = "checkpoint"
    suffix: str = SAFETENSORS
    folder: str = ""
    """Around the rank folders; `checkpoint` for MindFormers."""
    epoch: int | None = None
    """Epoch and step in the name, as MindFormers wants them; None leaves both out."""
    step: int = 0

    def file(self, rank: int) -> str:
        """Name of a rank's file, relative to the directory."""
        number = f"_{rank}" if self.epoch is None else f"_rank_{rank}-{self.epoch}_{self.step}"
        return f"{self.rank_folder(rank)}/{self.prefix}{number}{self.suffix}"

    def rank_folder(self, rank: int) -> str:
        """Its folder."""
        return f"{self.folder}/rank_{rank}" if self.folder else f"rank_{rank}"

    @classmethod
    def mindformers(cls, prefix: str, epoch: int, step: int) -> Naming:
        """That of MindFormers before 2.x."""
        return cls(prefix, SAFETENSORS, LEGACY[0], epoch, step)


def rank_folders(directory: Path) -> Path | None:
    """Where the `rank_N` folders of a checkpoint are: in its directory, or deeper as MindFormers has them."""
    return next((place for place in (directory, *(directory / name for name in LEGACY)) if _folders(place)), None)


def rank_files(directory: Path, ending: str | None = None) -> dict[int, Path]:
    """The file of each rank.

    Args:
        directory: with `rank_N` folders, or with those of MindFormers around them.
        ending: of the names without suffix (`-1_200`), where a folder has files of several steps.

    Raises:
        UserError: no rank folder, a gap in their numbers, or a folder without exactly one file that is meant.
    """
    base = rank_folders(directory)
    if base is None:
        raise UserError(f"{directory}: no rank_0, rank_1 ... in it")
    folders = _folders(base)
    if lost := sorted(set(range(max(folders) + 1)) - set(folders)):
        raise UserError(f"{base}: rank_{lost[0]} is missing, but there is rank_{max(folders)}")
    return {rank: _file(folder, ending) for rank, folder in sorted(folders.items())}


def strategy_files(directory: Path, given: Path | None = None) -> list[Path]:
    """Strategy files of a directory, or those given: a file, or a folder with them.

    Raises:
        UserError: there are none.
    """
    if given is not None and not given.is_dir():
        return [given]
    places = (
        [given] if given is not None else [directory / STRATEGY_FOLDER, directory, directory.parent / STRATEGY_FOLDER]
    )
    for place in places:
        found = sorted(path for path in place.glob("*") if STRATEGY_NAME.fullmatch(path.name)) if place.is_dir() else []
        if found:
            return found
    raise UserError(
        f"{given or directory}: no ckpt_strategy_rank_N.ckpt found; give the strategy files or a merged one"
    )


def is_strategy(path: Path) -> bool:
    """Whether a file says how tensors are cut, one rank's or a merged one: it holds none."""
    return "ckpt_strategy" in path.name


def meta_body(naming: Naming, rank: int) -> Mapping[str, object]:
    """Contents of `meta.json` of MindFormers."""
    return {
        "last_epoch": naming.epoch,
        "last_step": naming.step,
        "last_ckpt_file": naming.file(rank).rpartition("/")[2],
    }


def _folders(base: Path) -> dict[int, Path]:
    if not base.is_dir():
        return {}
    matches = ((RANK.fullmatch(path.name), path) for path in base.iterdir() if path.is_dir())
    return {int(match[1]): path for match, path in matches if match is not None}


def _file(folder: Path, ending: str | None) -> Path:
    found = sorted(path for path in folder.iterdir() if path.suffix in (SAFETENSORS, CKPT) and not is_strategy(path))
    if ending is not None:
        found = [path for path in found if path.stem.endswith(ending)]
    if len(found) > 1 and is_there(folder / META):
        last = read_json(folder / META).get("last_ckpt_file")
        found = [path for path in found if path.name == last]
    if len(found) != 1:
        what = "no file" if not found else f"{len(found)} files ({found[0].name}, {found[1].name} ...)"
        raise UserError(f"{folder}: {what} where one is expected; keep one, or say how the name ends")
    return found[0]
