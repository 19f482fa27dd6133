"""An output directory that appears complete or not at all, and a killed conversion that goes on where it stopped."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from mappings.errors import UserError
from mappings.formats.manifest import fsync_directory
from migrate.weights.engine.journal import Journal

SLACK = 16 << 20  # headers, manifest and directory entries
KEPT = "what is finished was kept, go on with --resume"
# What shows that a directory is a checkpoint, hence may be replaced with `force`.
MARKS = ("manifest.json", "config.json", "*.safetensors", "*.ckpt", "*/*.safetensors", "*/*.ckpt")


def check_output(out: Path, source: Path, *, force: bool, resume: bool = False) -> None:
    """Refuses an output that would destroy something, before any work.

    Args:
        out: directory to make.
        source: of the conversion.
        force: it may replace a checkpoint.
        resume: it may be the complete output of a conversion that was killed right behind its last step.

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
    if resume and _beside(out, "journal").exists() and not _beside(out, "partial").exists():
        return
    if not force:
        raise UserError(f"{out}: directory is not empty; choose another output or use --force")
    if not any(next(out.glob(mark), None) for mark in MARKS):
        raise UserError(f"{out}: holds no checkpoint, so --force does not replace it; choose another output")


def check_space(out: Path, needed: int) -> None:
    """Refuses work that cannot fit on the disk; what an interrupted conversion has written counts as free.

    Raises:
        UserError: free space and need, in bytes.
    """
    existing = next(folder for folder in (out, *out.absolute().parents) if folder.is_dir())
    free = shutil.disk_usage(existing).free
    written = sum(path.stat().st_blocks * 512 for path in _beside(out, "partial").rglob("*") if path.is_file())
    if free + written < needed + SLACK:
        raise UserError(f"{out}: needs {needed + SLACK - written} bytes, the disk has {free} free")


class Staging:
    """A directory beside `out` that takes its place when the block ends well.

    Names are fixed, so that a killed conversion is found again: `.<out>.partial` holds the files, `.<out>.journal` says
    which of them are right, `.<out>.old` is the output that is replaced until the new one is in place.

    After a failure in a `resumable` block, what the journal vouches for is kept for `resume`; else nothing is.
    """

    def __init__(self, out: Path, *, replace: bool, resume: bool) -> None:
        """Locks the place and puts right what a kill left.

        Args:
            out: the place to take.
            replace: take it even if it is filled; `check_output` decides whether it may be.
            resume: go on with the work of a killed conversion, if there is one.

        Raises:
            UserError: another conversion to `out` is running, or the folder cannot be written.
        """
        self.out, self.replace = out.resolve(), replace
        self.directory, self.old = _beside(out, "partial"), _beside(out, "old")
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"{out}: cannot be created ({error.strerror})") from error
        self.journal = Journal(_beside(out, "journal"))
        self.leftovers: list[Path] = []
        """What an earlier conversion left and this one removed."""
        self.already_done = False
        """Whether the killed conversion had put its output in place, and only its traces were left."""
        self._keep = False
        try:
            self._recover(resume)
            self._check_room()
        except OSError as error:
            self.journal.close()
            raise UserError(f"{error.filename or out}: cannot be restored ({error.strerror})") from error
        except UserError:
            self.close()
            raise

    def __enter__(self) -> Staging:
        try:
            self.directory.mkdir(exist_ok=True)
        except OSError as error:
            self.journal.remove()
            raise UserError(f"{self.out}: cannot be created ({error.strerror})") from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._end()
            return
        if self._keep and (self.journal.batches or self.journal.files):
            self.journal.close()
            rest = KEPT
        else:
            self._give_up()
            rest = "nothing was kept"
        if isinstance(error, OSError):
            raise UserError(f"{self.out}: writing failed ({error.strerror or error}); {rest}") from error
        if isinstance(error, UserError):
            raise UserError(f"{error}; {rest}") from error

    @contextmanager
    def resumable(self) -> Iterator[None]:
        """A block of which finished parts are kept when it fails."""
        self._keep = True
        yield
        self._keep = False

    def remove_others(self, names: Sequence[str]) -> None:
        """Removes files of an earlier run that are none of `names`, so that they are made again."""
        wanted = {self.directory / name for name in names}
        for path in sorted(self.directory.rglob("*"), reverse=True):
            if path.is_dir() and not path.is_symlink():
                if not any(path.iterdir()):
                    path.rmdir()
            elif path not in wanted:
                path.unlink()

    def clean(self) -> None:
        """Removes the traces of a conversion that was `already_done`."""
        if self.old.exists():
            shutil.rmtree(self.old)
        self.journal.remove()

    def close(self) -> None:
        """Ends without having begun: nothing changes."""
        if self.journal.begun or self.directory.exists():
            self.journal.close()
        else:
            self.journal.remove()

    def _recover(self, resume: bool) -> None:
        partial, moved = self.directory.exists(), self.old.exists()
        if self.journal.published and not partial and self.out.exists():  # killed behind the last rename
            if resume:
                self.already_done = True
                return
            if moved:
                shutil.rmtree(self.old)
            self.journal.clear()
            return
        if moved and not self.out.exists():  # killed between the two renames
            self.old.rename(self.out)
            fsync_directory(self.out.parent)
        if resume and self.journal.begun and partial:
            return
        if partial:
            self.leftovers.append(self.directory)
            shutil.rmtree(self.directory)
        self.journal.clear()

    def _check_room(self) -> None:
        """Refuses at once what publishing would refuse after all the work."""
        if self.already_done or not self._is_filled():
            return
        if not self.replace:
            raise UserError(f"{self.out}: directory is not empty; choose another output or use --force")
        if self.old.exists():
            raise UserError(f"{self.old}: is an old output that could not be deleted; delete it first")

    def _end(self) -> None:
        """Publishes; after a failure the complete directory stays, for `resume`."""
        if self._is_filled() and not self.replace:
            self._give_up()
            raise UserError(f"{self.out}: was filled by another process meanwhile; nothing was kept")
        try:
            self._publish()
        except BaseException as error:
            self.journal.close()
            if not self.directory.exists():  # it is in its place, only tidying up failed
                raise
            reason = (error.strerror or error) if isinstance(error, OSError) else error
            if isinstance(error, OSError | UserError):
                raise UserError(f"{self.out}: writing failed ({reason}); {KEPT}") from error
            raise

    def _is_filled(self) -> bool:
        return self.out.is_dir() and any(self.out.iterdir())

    def _publish(self) -> None:
        for folder in (self.directory, *(path for path in self.directory.rglob("*") if path.is_dir())):
            fsync_directory(folder)
        filled = self.replace and self._is_filled()  # else renaming fails where somebody fills it now
        self.journal.publishing()
        try:
            if filled:
                self.out.rename(self.old)
            self.directory.rename(self.out)  # an empty directory is replaced by rename itself
        except BaseException:
            if filled and not self.out.exists():
                self.old.rename(self.out)
            raise
        try:
            fsync_directory(self.out.parent)
            if filled:
                shutil.rmtree(self.old)
        except OSError as error:
            self.journal.remove()
            rest = f"; the old one, now {self.old}, can be deleted" if filled else ""
            raise UserError(f"{self.out}: is complete, but tidying up failed ({error.strerror}){rest}") from error
        self.journal.remove()

    def _give_up(self) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)
        self.journal.remove()


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


def sync_file(path: Path) -> None:
    """Makes a written file safe."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _beside(out: Path, purpose: str) -> Path:
    """A hidden name, so that a crash leaves nothing that looks like a checkpoint."""
    place = out.resolve()  # `.` has no name
    return place.parent / f".{place.name}.{purpose}"
