"""An output directory that appears complete or not at all."""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from mappings.errors import UserError
from mappings.formats.manifest import fsync_directory

SLACK = 16 << 20  # headers, manifest and directory entries
# What shows that a directory is a checkpoint, hence may be replaced with `force`.
MARKS = ("manifest.json", "config.json", "*.safetensors")


def check_output(out: Path, source: Path, *, force: bool) -> None:
    """Refuses an output that would destroy something, before any work.

    Raises:
        UserError: `out` is a file, a link, the source or a folder around or inside it, or is not empty and may not be
            replaced.
    """
    if out.is_symlink() or (out.exists() and not out.is_dir()):
        raise UserError(f"{out}: exists and is no directory; choose another output")
    here, there = out.resolve(), source.resolve()
    if here == there or here in there.parents or there in here.parents:
        raise UserError(f"{out}: output and source {source} lie inside each other; choose another output")
    if not out.is_dir() or not any(out.iterdir()):
        return
    if not force:
        raise UserError(f"{out}: directory is not empty; choose another output or use --force")
    if not any(next(out.glob(mark), None) for mark in MARKS):
        raise UserError(f"{out}: holds no checkpoint, so --force does not replace it; choose another output")


def check_space(out: Path, needed: int) -> None:
    """Refuses work that cannot fit on the disk.

    Raises:
        UserError: free space and need, in bytes.
    """
    existing = next(folder for folder in (out, *out.absolute().parents) if folder.is_dir())
    free = shutil.disk_usage(existing).free
    if free < needed + SLACK:
        raise UserError(f"{out}: needs {needed + SLACK} bytes, the disk has {free} free")


@contextmanager
def staged(out: Path, *, replace: bool) -> Iterator[Path]:
    """A temporary directory beside `out` that takes its place when the block ends well, and is removed otherwise.

    Args:
        out: the place to take.
        replace: take it even if it is filled; `check_output` has decided that it may be.

    Raises:
        UserError: the directory cannot be made, the file system refused something inside the block, or `out` was filled
            by somebody else meanwhile.
    """
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        temporary = _beside(out, "tmp")
        temporary.mkdir()
    except OSError as error:
        raise UserError(f"{out}: cannot be created ({error.strerror})") from error
    try:
        yield temporary
        _publish(temporary, out, replace)
    except BaseException as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if isinstance(error, OSError):
            raise UserError(f"{out}: writing failed ({error.strerror or error}); nothing was kept") from error
        raise


def leftovers(out: Path) -> list[Path]:
    """Temporary directories that killed conversions to `out` left beside it."""
    pattern = re.compile(rf"\.{re.escape(out.name)}\.[0-9a-f]{{12}}\.(tmp|old)")
    if not out.parent.is_dir():
        return []
    return sorted(path for path in out.parent.iterdir() if pattern.fullmatch(path.name))


def copy_files(files: Sequence[Path], directory: Path) -> None:
    """Copies small files under their own names, fsynced; a link is copied as the file it leads to.

    Raises:
        UserError: a file cannot be read or written.
    """
    for path in files:
        try:
            with path.open("rb") as source, (directory / path.name).open("xb") as target:
                shutil.copyfileobj(source, target)
                target.flush()
                os.fsync(target.fileno())
        except OSError as error:
            raise UserError(f"{path}: cannot be copied ({error.strerror})") from error


def write_text(path: Path, text: str) -> None:
    """Writes a small file, fsynced."""
    with path.open("x", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _publish(temporary: Path, out: Path, replace: bool) -> None:
    fsync_directory(temporary)
    if not out.is_dir() or not any(out.iterdir()):
        temporary.rename(out)  # an empty directory is replaced by rename itself
        fsync_directory(out.parent)
        return
    if not replace:
        raise UserError(f"{out}: was filled by another process meanwhile; nothing was kept")
    old = _beside(out, "old")
    out.rename(old)
    try:
        temporary.rename(out)
    except OSError:
        old.rename(out)
        raise
    fsync_directory(out.parent)
    try:
        shutil.rmtree(old)
    except OSError as error:
        raise UserError(
            f"{out}: is complete, but the old one, now {old}, was not removed ({error.strerror})"
        ) from error


def _beside(out: Path, purpose: str) -> Path:
    """A name that nobody uses, hidden so that a crash leaves nothing that looks like a checkpoint."""
    return out.parent / f".{out.name}.{secrets.token_hex(6)}.{purpose}"
