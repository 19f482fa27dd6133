"""Workers that may crash or hang: each death is charged to the sample that caused it and the entry goes on."""

from __future__ import annotations

import json
import os
import queue
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
START_TIMEOUT = 300.0
START_ATTEMPTS, START_PAUSE = 4, 10.0
MAX_DEATHS = 3
"""Deaths after which the rest of an entry is not tried."""


class WorkerDied(Exception):
    """The process ended or hung; the message says how."""


class Worker:
    """One process of `opdb_worker`."""

    def __init__(self, sample_timeout: float) -> None:
        self.sample_timeout = sample_timeout
        self.directory = tempfile.TemporaryDirectory(prefix="opdb")
        path = os.pathsep.join([str(HERE), str(HERE.parents[1])])
        environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "GLOG_v": "4"}
        self.log = Path(self.directory.name, "stderr")
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(HERE / "opdb_worker.py")],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=self.directory.name,
                env=environment,
                start_new_session=True,
            )
        self._buffer, self._last_words = b"", ""
        try:
            self.event(START_TIMEOUT)
        except WorkerDied as death:
            raise RuntimeError(f"a worker does not start: {death}\n{self._last_words}") from death

    def send(self, job: dict[str, Any]) -> None:
        """Start a job."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(job).encode() + b"\n")
        self.process.stdin.flush()

    def event(self, timeout: float | None = None) -> dict[str, Any]:
        """The next event.

        Raises:
            WorkerDied: the process ended, or said nothing for too long and was killed.
        """
        assert self.process.stdout is not None
        descriptor = self.process.stdout.fileno()
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([descriptor], [], [], timeout or self.sample_timeout)
            if not ready:
                self.stop()
                raise WorkerDied(f"no answer within {timeout or self.sample_timeout:.0f} s")
            data = os.read(descriptor, 1 << 16)
            if not data:
                code = self.process.wait()
                self._last_words = self.log.read_text(errors="replace")[-2000:]
                self.stop()
                raise WorkerDied(f"the process died: {signal.Signals(-code).name if code < 0 else f'exit code {code}'}")
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return json.loads(line)

    def stop(self) -> None:
        """End the process and its children."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        self.directory.cleanup()


class Pool:
    """Runs entries on several workers."""

    def __init__(self, workers: int, sample_timeout: float = 30.0) -> None:
        self.workers, self.sample_timeout = workers, sample_timeout

    def run(
        self,
        keys: Iterable[str],
        finished: Callable[[str, dict[str, list[dict[str, Any]]]], None],
        limit: int | None = None,
        primary_only: bool = False,
        errors: bool = False,
    ) -> None:
        """Call `finished(key, outcomes by form)` for every entry, in the order in which they end."""
        waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
        for key in keys:
            waiting.put(key)
        lock, failures = threading.Lock(), []

        def serve() -> None:
            worker: Worker | None = None
            try:
                while True:
                    try:
                        key = waiting.get_nowait()
                    except queue.Empty:
                        return
                    options = {"entry": key, "limit": limit, "primary_only": primary_only, "errors": errors}
                    outcomes, worker = self._entry(worker, options)
                    with lock:
                        finished(key, outcomes)
            except Exception as error:  # noqa: BLE001 - raised again in the caller's thread
                failures.append(error)
            finally:
                if worker is not None:
                    worker.stop()

        threads = [threading.Thread(target=serve) for _ in range(self.workers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]

    def _started(self) -> Worker:
        """A new worker; a table that is being edited may be broken for a moment."""
        for _ in range(START_ATTEMPTS - 1):
            try:
                return Worker(self.sample_timeout)
            except RuntimeError:
                time.sleep(START_PAUSE)
        return Worker(self.sample_timeout)

    def _entry(
        self, worker: Worker | None, options: dict[str, Any]
    ) -> tuple[dict[str, list[dict[str, Any]]], Worker | None]:
        outcomes: dict[str, list[dict[str, Any]]] = {}
        begun, deaths = 0, 0
        form, source, running = "", "", False
        while True:
            if worker is None:
                worker = self._started()
            try:
                worker.send({**options, "skip": begun})
                while True:
                    event = worker.event()
                    if "begin" in event:
                        form, source = event["begin"]
                        begun, running = begun + 1, True
                    elif "end" in event:
                        outcomes.setdefault(form, []).append(event["end"])
                        running = False
                    else:
                        return outcomes, worker
            except WorkerDied as death:
                worker, deaths = None, deaths + 1
                charged = {"outcome": "raised", "source": source, "converted": "", "error": 0.0, "rows": []}
                reason = str(death) if running else f"{death} (between samples)"
                outcomes.setdefault(form, []).append({**charged, "gradient": False, "reason": reason})
                running = False
                if deaths >= MAX_DEATHS or form == "errors":  # one death of a call that torch refuses says enough
                    reason = f"not tried after {deaths} deaths of the process"
                    outcomes[form].append({**charged, "source": "", "gradient": False, "reason": reason})
                    return outcomes, None
