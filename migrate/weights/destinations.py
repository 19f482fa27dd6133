"""What a conversion shall write: a container, a spelling and a cut, the files that follow, and the small files."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mappings.errors import UserError
from mappings.families.family import HF
from mappings.formats.manifest import FileRecord
from mappings.layout import ParallelLayout
from migrate.weights.containers import ckpt, hf, iteration, mindspore, sharded, strategy
from migrate.weights.containers.content import Content
from migrate.weights.containers.rank_folders import Naming, strategy_files
from migrate.weights.containers.stages import Stages, stages_for
from migrate.weights.containers.stored_files import CKPT, SAFETENSORS
from migrate.weights.containers.strategy_layouts import stages_of
from migrate.weights.tensors import TargetFile

Writer = Callable[[Path, Mapping[str, FileRecord]], list[Path]]
"""Writes the small files of a container into a directory; gives those that it wrote or changed."""
WHOLE = (hf.NAME, mindspore.NAME, ckpt.NAME)
CUT = (sharded.NAME, strategy.NAME, iteration.NAME)
NAME = re.compile(r"[A-Za-z0-9_]+")


@dataclass(frozen=True)
class Destination:
    """Where to. Fields that a container has no use for must be left alone."""

    container: str = sharded.NAME
    layout: ParallelLayout = field(default_factory=ParallelLayout)
    spelling: str = HF
    strategy: Path | None = None
    """Of `strategy`: strategy files that say how to cut, in place of the layout."""
    max_shard_size: int | None = None
    """Of `hf` and `mindspore`: bytes per file; None is the usual size, or the files of the original."""
    crc: bool = False
    """Of `mindspore` and `ckpt`: write MindSpore's checksum."""
    as_ckpt: bool = False
    """Of `strategy`: protobuf files in place of safetensors."""
    remove_redundancy: bool = False
    """Of `strategy`: each piece in the file of one of the ranks that hold it."""
    mindformers: str | None = None
    """Of `strategy`: files as MindFormers before 2.x names them, with this prefix, epoch and step."""
    epoch: int = 1
    step: int = 0
    """Of `iteration`: its number."""

    def check(self) -> None:
        """Refuses options that contradict each other.

        Raises:
            UserError: names the option and the container.
        """
        if self.container not in (*WHOLE, *CUT):
            raise UserError(f"no container {self.container!r}; known are {', '.join((*WHOLE, *CUT))}")
        given: dict[str, tuple[bool, tuple[str, ...]]] = {
            "a parallel layout": (self.layout != ParallelLayout(), CUT),
            "--to-strategy": (self.strategy is not None, (strategy.NAME,)),
            "--max-shard-size": (self.max_shard_size is not None, (hf.NAME, mindspore.NAME)),
            "--crc": (self.crc, (mindspore.NAME, ckpt.NAME)),
            "--as-ckpt": (self.as_ckpt, (strategy.NAME,)),
            "--remove-redundancy": (self.remove_redundancy, (strategy.NAME,)),
            "--mindformers": (self.mindformers is not None, (strategy.NAME,)),
            "--epoch": (self.epoch != 1, (strategy.NAME,)),
            "--step": (self.step != 0, (iteration.NAME, strategy.NAME)),
        }
        for option, (is_given, containers) in given.items():
            if is_given and self.container not in containers:
                raise UserError(f"{option} is for {' and '.join(containers)}, not for {self.container}")
        if self.strategy is not None and self.layout != ParallelLayout():
            raise UserError("the strategy files say how to cut; leave out the parallel layout")
        if self.max_shard_size is not None and self.max_shard_size < 1:
            raise UserError(f"max shard size must be at least 1 byte, found {self.max_shard_size}")
        if self.container == strategy.NAME and self.mindformers is None and (self.step or self.epoch != 1):
            raise UserError("--epoch and --step are in file names with --mindformers only")
        if self.mindformers is not None and (self.as_ckpt or not NAME.fullmatch(self.mindformers)):
            raise UserError(f"--mindformers: {self.mindformers!r} must be a word, and its files are safetensors")
        if self.step < 0:
            raise UserError(f"step must be at least 0, found {self.step}")


@dataclass(frozen=True)
class Origin:
    """What else is known of the source, for the manifest and for giving back its files."""

    record: Mapping[str, Any]
    """Of the files of a Hugging Face directory; empty where there was none."""
    training: Mapping[str, Any]
    """State of a run."""
    versions: Mapping[str, str]
    common: Mapping[str, Any] = field(default_factory=dict)
    """Of `common.json`."""


def files_for(content: Content, destination: Destination, origin: Origin) -> tuple[list[TargetFile], Writer]:
    """The files to write, and who writes the small ones.

    Raises:
        UserError: the layout or the spelling does not fit the model or the container.
    """
    match destination.container:
        case hf.NAME:
            return _hf(content, destination, origin)
        case sharded.NAME:
            return _sharded(content, destination, origin)
        case mindspore.NAME:
            size = destination.max_shard_size or mindspore.PART_BYTES
            files = mindspore.layout(content, part_bytes=size, crc=destination.crc)
            return files, lambda directory, _: mindspore.finish(directory, files)
        case ckpt.NAME:
            return ckpt.layout(content), lambda directory, _: ckpt.finish(directory, crc=destination.crc)
        case strategy.NAME:
            return _strategy(content, destination)
    stages = stages_for(content, destination.layout)
    step = destination.step
    files = iteration.layout(content, stages, step)
    return files, lambda directory, _: iteration.finish(directory, content, stages, step, origin.common)


def _hf(content: Content, destination: Destination, origin: Origin) -> tuple[list[TargetFile], Writer]:
    files = hf.layout(content, recorded=origin.record or None, max_shard_size=destination.max_shard_size)
    hf.index_text(files, origin.record or None)  # what is malformed is found before anything is written
    return files, lambda directory, _: hf.finish(directory, files, origin.record or None)


def _sharded(content: Content, destination: Destination, origin: Origin) -> tuple[list[TargetFile], Writer]:
    def finish(directory: Path, records: Mapping[str, FileRecord]) -> list[Path]:
        sharded.finish(
            directory,
            content,
            destination.layout,
            files=records,
            versions=origin.versions,
            source=origin.record,
            training=origin.training,
        )
        return []  # the manifest is written last, and safely

    return sharded.layout(content, destination.layout), finish


def _strategy(content: Content, destination: Destination) -> tuple[list[TargetFile], Writer]:
    if destination.strategy is not None:
        given = destination.strategy
        stages: Stages = stages_of(strategy_files(given, given), content)
    else:
        stages = stages_for(content, destination.layout)
    naming = Naming(suffix=CKPT if destination.as_ckpt else SAFETENSORS)
    if destination.mindformers is not None:
        naming = Naming.mindformers(destination.mindformers, destination.epoch, destination.step)
    alone = destination.remove_redundancy
    files = strategy.layout(content, stages, naming, remove_redundancy=alone)
    return files, lambda directory, _: strategy.finish(
        directory, content, stages, naming, remove_redundancy=alone, merge=len(stages.cuts) > 1
    )
