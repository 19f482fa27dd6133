"""Finds out what a directory or file is, and reads it with the container of that kind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path

from mappings.errors import UserError
from mappings.families import Family, load_family
from mappings.formats.conversion_manifest import ConversionManifest
from mappings.formats.hf_directory import INDEX, SINGLE, read_config
from mappings.formats.iteration import METADATA, TRACKER
from mappings.formats.manifest import NAME as MANIFEST
from mappings.formats.param_name_map import NAME as NAME_MAP
from mappings.formats.regular_files import is_there
from migrate.report import Finding
from migrate.weights.codes import finding
from migrate.weights.containers import ckpt, hf, iteration, mindspore, sharded, strategy
from migrate.weights.containers.rank_folders import rank_folders
from migrate.weights.tensors import Checkpoint

CONTAINERS = ("hf", "sharded", "mindspore", "strategy", "iteration", "ckpt")
OWN_NAMES = ("hf", "sharded")
"""Those whose directories say family and spelling themselves."""


@dataclass(frozen=True)
class Hints:
    """What a path does not say by itself; every field may be left out."""

    container: str | None = None
    """One of `CONTAINERS`, where the directory could be read as several."""
    family: str | None = None
    """Name of a family file, where `config.json` has no `model_type` that says it."""
    config: Path | None = None
    """Directory with the `config.json`, for containers that have none."""
    key: str | None = None
    """Where in pickled weights the state dict is."""
    spelling: str | None = None
    """Of the names, where they fit several spellings."""
    strategy: Path | None = None
    """Strategy file or folder of `rank_N` folders."""
    ending: str | None = None
    """Of the file names in `rank_N` folders, where those have files of several steps."""
    redundancy_removed: bool = False
    """Whether ranks lack what others hold; safetensors of MindSpore say so themselves, a `.ckpt` does not."""
    allow: tuple[str, ...] = ()
    """Patterns (`*`, `?`) of names that may be in the checkpoint although the model has no such tensor."""


Judge = Callable[[Checkpoint], Sequence[Finding]]


def open_checkpoint(path: Path, hints: Hints | None = None, judge: Judge | None = None) -> Checkpoint:
    """Reads headers.

    Args:
        path: a checkpoint of any container.
        hints: what it does not say by itself.
        judge: gives further findings, of which `allow` takes some back.

    Raises:
        UserError: nothing is there that any container reads, or it is malformed.
    """
    hints = hints or Hints()
    manifest = ConversionManifest.read(home_of(path))
    kind = hints.container or kind_of(path)
    if manifest is not None and manifest.container == kind not in OWN_NAMES:
        hints = replace(hints, spelling=hints.spelling or manifest.spelling)
    checkpoint = _read(path, kind, hints)
    if judge is not None:
        checkpoint = replace(checkpoint, findings=(*checkpoint.findings, *judge(checkpoint)))
    checkpoint = allowing(checkpoint, hints.allow)
    if manifest is None or manifest.container != kind:
        return checkpoint
    return replace(checkpoint, extra={"record": manifest.source, **checkpoint.extra})


def allowing(checkpoint: Checkpoint, patterns: Sequence[str]) -> Checkpoint:
    """The checkpoint with unexpected tensors left out, and listed, where their names fit a pattern; padding likewise.

    Raises:
        UserError: a pattern fits no unexpected tensor, and none with padding that is not zero.
    """
    allowed: dict[str, str] = {}
    findings = []
    for found in checkpoint.findings:
        name = found.tensor if found.code in ("W002", "W026") else None
        fits = [pattern for pattern in patterns if name is not None and fnmatchcase(name, pattern)]
        if not fits or name is None:
            findings.append(found)
            continue
        allowed |= dict.fromkeys(fits, name)
        if found.code == "W026":
            message = f"{found.message}; left out, allowed by {fits[0]!r}"
            findings.append(finding("W021", message, file=found.file, tensor=name))
            continue
        message = found.message.replace("unexpected", f"left out, allowed by {fits[0]!r}", 1)
        findings.append(finding("W006", message, file=found.file, tensor=name))
    if idle := [pattern for pattern in patterns if pattern not in allowed]:
        raise UserError(f"{checkpoint.directory}: --allow {idle[0]!r} fits no unexpected tensor")
    extra = checkpoint.extra
    if allowed and extra.get("record"):
        names = [found.tensor for found in findings if found.code == "W006" and found.tensor]
        extra = {
            **extra,
            "record": {**extra["record"], "left_out": sorted({*hf.names_left_out(extra["record"]), *names})},
        }
    return replace(checkpoint, findings=tuple(findings), extra=extra) if allowed else checkpoint


def home_of(path: Path) -> Path:
    """The directory in which the small files of a checkpoint lie."""
    return path if path.is_dir() else path.parent


def _read(path: Path, kind: str, hints: Hints) -> Checkpoint:
    family: Family | None = load_family(hints.family) if hints.family else None
    config = read_config(hints.config) if hints.config else None
    if kind in OWN_NAMES and (family or config):
        raise UserError(f"{path}: a {kind} directory has its own config.json, which says the family")
    if kind != "hf" and hints.key:
        raise UserError(f"{path}: --key is for pickled weights")
    if kind != "strategy" and (hints.strategy or hints.ending or hints.redundancy_removed):
        raise UserError(f"{path}: --strategy, --ending and --redundancy-removed are for rank_N folders")
    if kind == "sharded" and hints.spelling:
        raise UserError(f"{path}: a sharded directory has the names of Hugging Face, no other spelling")
    match kind:
        case "hf":
            return hf.read(path, hints.key, hints.spelling)
        case "sharded":
            return sharded.read(path)
        case "mindspore":
            return mindspore.read(path, family, config, hints.spelling)
        case "strategy":
            return strategy.read(
                path,
                family,
                config,
                hints.spelling,
                strategy=hints.strategy,
                ending=hints.ending,
                redundancy_removed=hints.redundancy_removed,
            )
        case "iteration":
            return iteration.read(path, family, config, hints.spelling)
        case "ckpt":
            return ckpt.read(path, family, config, hints.spelling)
    raise UserError(f"no container {kind!r}; known are {', '.join(CONTAINERS)}")


def kind_of(path: Path) -> str:
    """The container that a path looks like, from the names in it.

    Raises:
        UserError: no such path, or it looks like none.
    """
    if path.is_file():
        if path.suffix == ".ckpt":
            return "ckpt"
        raise UserError(
            f"{path}: is a file; give its directory with config.json, or a .ckpt; of converted code: "
            "--family none --table OUT/weights_table.json --class CLASS"
        )
    if not path.is_dir():
        raise UserError(f"{path}: {'is neither a file nor a directory' if path.exists() else 'no such directory'}")
    if is_there(path / MANIFEST):
        return "sharded"
    if is_there(path / NAME_MAP):
        return "mindspore"
    if is_there(path / TRACKER) or is_there(path / METADATA):
        return "iteration"
    if rank_folders(path) is not None:
        return "strategy"
    if not any(is_there(path / name) for name in (SINGLE, INDEX)) and not any(path.glob("pytorch_model*")):
        if any(path.glob("*.safetensors")):
            return "mindspore"
        if any(path.glob("*.ckpt")):
            return "ckpt"
    read_config(path)  # names what is missing
    return "hf"
