"""`Saver`: writes checkpoints while training goes on, or at once; all ranks do the same at the same step.

A save is: the first rank makes a staging directory, every rank writes its files and their records there, the first
rank writes the manifest, renames the directory, replaces `LATEST` and removes what is kept no longer. Between these the
ranks agree, and only in the thread that trains: the thread that writes never communicates. Where writing is
asynchronous each step asks whether all threads are done, and the rest happens at that step.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any

from mappings.errors import UserError
from mappings.formats.manifest import Manifest
from mappings.layout import ParallelLayout
from ms_models.train.checkpoints.run_directory import commit, staging_name, step_name
from ms_models.train.checkpoints.writing import Contents, clear, write_manifest, write_rank
from ms_models.train.config.checkpoint import CheckpointConfig
from ms_models.train.config.versions import versions
from ms_models.train.phases import enter

ATTEMPTS = 2
SIGN_OF_LIFE_S = 10.0


@dataclass(frozen=True)
class Saved:
    """A checkpoint that is complete."""

    step: int
    directory: Path
    seconds: float
    """From the step it belongs to until it was complete."""
    blocked_s: float
    """Of these, seconds in which this rank did not train."""
    bytes: int
    """Of the whole checkpoint on the first rank, of its own files on the others."""

    def record(self) -> dict[str, Any]:
        """What metrics.jsonl gets."""
        return {
            "step": self.step,
            "checkpoint_s": self.seconds,
            "checkpoint_blocked_s": self.blocked_s,
            "checkpoint_bytes": self.bytes,
        }


class Saver:
    """Saves on one rank; every rank calls the same methods in the same order.

    Args:
        run: run directory.
        rank: of the world.
        layout: of the run.
        family: for the manifest.
        config: section `checkpoint`.
        agree: whether a flag is set on any rank, for all ranks; also the barrier between two stages.
    """

    def __init__(
        self,
        run: Path,
        rank: int,
        layout: ParallelLayout,
        family: str,
        config: CheckpointConfig,
        agree: Callable[[bool], bool],
    ) -> None:
        self.run, self.rank, self.layout, self.family, self.config = run, rank, layout, family, config
        self._agree = agree
        self._job: _Job | None = None

    @property
    def pending(self) -> int | None:
        """Step of the checkpoint that is being written, the same on every rank."""
        return None if self._job is None else self._job.step

    def begin(self, step: int, contents: Contents, training: Mapping[str, Any], since: float) -> None:
        """Starts to write a checkpoint; none may be pending.

        Args:
            step: optimizer steps done.
            contents: files of this rank, which nobody changes until the save has ended.
            training: plain data for the manifest.
            since: `time.perf_counter()` when this rank stopped training for it.

        Raises:
            TypeError: `training` is not plain data.
        """
        assert self._job is None, "never two saves at once"
        job = _Job(step, self.run / staging_name(step), self.rank, contents, json.loads(json.dumps(training)), since)
        self._job = job
        self._attempt(job)
        job.blocked_s += time.perf_counter() - since

    def poll(self) -> list[Saved]:
        """Completes the pending save if every rank has written its files; to be called after each step.

        Raises:
            UserError: it could not be written, on this or another rank; older checkpoints are untouched.
        """
        job = self._job
        if job is None or self._agree(not job.is_done()):
            return []
        return self._conclude(job)

    def finish(self) -> list[Saved]:
        """Waits for the pending save, if there is one.

        Raises:
            UserError: see `poll`.
        """
        saved: list[Saved] = []
        while self._job is not None:
            start = time.perf_counter()
            self._job.wait()
            self._job.blocked_s += time.perf_counter() - start
            saved = self._conclude(self._job)
        return saved

    def _attempt(self, job: _Job) -> None:
        job.attempts += 1
        is_clear = self._together(job, lambda: clear(job.staging), self.rank == 0)
        job.start(in_background=self.config.asynchronous, only_fail=not is_clear)

    def _conclude(self, job: _Job) -> list[Saved]:
        """Every rank comes here at the same step, its own files written or failed."""
        start = time.perf_counter()
        first, config = self.rank == 0, self.config
        stages: tuple[tuple[Callable[[], None], bool], ...] = (
            (job.result, True),
            (lambda: write_manifest(job.staging, self.family, self.layout, versions(), job.training), first),
            (lambda: commit(self.run, job.step, config.keep, config.permanent_every), first),
        )
        if all(self._together(job, stage, is_mine) for stage, is_mine in stages):
            self._job = None
            target, now = self.run / step_name(job.step), time.perf_counter()
            size = sum(record.bytes for record in Manifest.read(target).files.values()) if first else job.contents.bytes
            return [Saved(job.step, target, now - job.since, job.blocked_s + now - start, size)]
        if job.attempts < ATTEMPTS:
            self._attempt(job)
            job.blocked_s += time.perf_counter() - start
            return []
        self._job = None
        if first:
            # Half a checkpoint on a full disk would be in the way of whatever comes next.
            self._try(job, lambda: shutil.rmtree(job.staging) if job.staging.exists() else None)
        reason = "; ".join(dict.fromkeys(job.reasons)) or "another rank failed"
        raise UserError(
            f"{self.run}: checkpoint of step {job.step} could not be saved in {ATTEMPTS} attempts: {reason}; "
            "the checkpoints before it are untouched: make room or choose another disk, then go on with --resume"
        )

    def _together(self, job: _Job, stage: Callable[[], None], is_mine: bool) -> bool:
        return not self._agree(is_mine and not self._try(job, stage))

    def _try(self, job: _Job, stage: Callable[[], None]) -> bool:
        try:
            stage()
        except OSError as error:
            job.reasons.append(f"{error.strerror or error} ({error.filename})")
            return False
        return True


class _Job:
    """One save on one rank, with all its attempts."""

    def __init__(
        self, step: int, staging: Path, rank: int, contents: Contents, training: dict[str, Any], since: float
    ) -> None:
        self.step, self.staging, self.rank, self.contents, self.training = step, staging, rank, contents, training
        self.since, self.blocked_s = since, 0.0
        self.attempts = 0
        self.reasons: list[str] = []
        self._thread: Thread | None = None
        self._error: Exception | None = None
        self._only_fail = False

    def start(self, *, in_background: bool, only_fail: bool) -> None:
        """Writes; where the attempt has failed already, only notes that."""
        self._thread, self._error, self._only_fail = None, None, only_fail
        if only_fail:
            return
        if in_background:
            # A daemon: a run that fails does not wait for a checkpoint that cannot be completed any more.
            self._thread = Thread(target=self._write, name=f"checkpoint of step {self.step}", daemon=True)
            self._thread.start()
        else:
            self._write()

    def is_done(self) -> bool:
        """Whether this rank's files are written, or are not going to be."""
        return self._thread is None or not self._thread.is_alive()

    def wait(self) -> None:
        """Until `is_done`; says now and then that this rank writes, and does not hang."""
        while self._thread is not None and self._thread.is_alive():
            enter("save")
            self._thread.join(SIGN_OF_LIFE_S)

    def result(self) -> None:
        """Raises what went wrong with this rank's files."""
        if self._only_fail:
            raise OSError(None, "the staging directory could not be made", str(self.staging))
        if self._error is not None:
            raise self._error

    def _write(self) -> None:
        try:
            write_rank(self.staging, self.rank, self.contents)
        except Exception as error:  # noqa: BLE001 - raised by `result`, in the thread that trains
            self._error = error
