"""`launch`: checks a run, prepares its data, starts its processes, shows their progress and ends them."""

from __future__ import annotations

import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from mappings.errors import UserError
from ms_models.data import records
from ms_models.data.prepare import Tracker, prepare
from ms_models.data.records import PreparedData
from ms_models.data.tokenization import read_tokenizer
from ms_models.train.checkpoints.run_directory import LOGS, PROGRESS
from ms_models.train.config import RESOLVED, RunConfig, load
from ms_models.train.launch import preflight, resuming, status
from ms_models.train.launch.processes import Failure, Ranks, command_line, environment, worker_log

WORKER = "ms_models.train.worker"
FAILED = 1
SIGNAL_EXIT = 128
PROGRESS_INTERVAL_S = 5.0


class Interrupted(Exception):
    """A signal asked the launcher to end."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


def launch(
    config_path: Path,
    overrides: Sequence[str] = (),
    *,
    resume: bool = False,
    resume_from: str | None = None,
    reshard: bool = False,
    dry_run: bool = False,
    stop_after: int | None = None,
    echo: Callable[[str], None] | None = None,
) -> int:
    """Runs a training run from its configuration to its end.

    Args:
        config_path: YAML configuration.
        overrides: `section.field=value` strings.
        resume: go on from the newest checkpoint; sets `checkpoint.resume`.
        resume_from: go on from this one; sets `checkpoint.resume_from`.
        reshard: cut it anew where it is of another layout; sets `checkpoint.reshard`.
        dry_run: check everything that needs no process, write nothing.
        stop_after: save and stop after this step.
        echo: receives each line of progress; standard output where not given.

    Returns:
        0 when the run reached its end, 1 when it failed (the reason was shown), 128 + n after signal n.

    Raises:
        UserError: configuration, model, data or checkpoint do not fit; nothing is left running.
    """
    say = echo or _to_stdout
    config = load(config_path, overrides)
    config = resuming.requested(config, resume=resume, resume_from=resume_from, reshard=reshard)
    if stop_after is not None and not 1 <= stop_after <= config.train.steps:
        raise UserError(f"stop_after is {stop_after}, but the run has steps 1 to {config.train.steps}")
    env = environment(config.train.threads, config.layout.world_size)
    model = preflight.check_model(config)
    preflight.check_output(config, model)
    say(f"model: {model.family.name}, {model.parameters:,} parameters; layout: {config.layout}")
    say(f"global batch: {config.train.micro_batch_size} x {config.train.accumulation} x dp {config.layout.dp} "
        f"= {config.global_batch} sequences")  # fmt: skip
    try:
        with _Signals() as signals:
            data = _data(config, model, dry_run, say)
            start = None
            if data is not None:
                for line in preflight.check_data(config, model, data):
                    say(line)
                if config.checkpoint.is_resumed:
                    start, changes = resuming.check_resume(config, data)
                    for line in changes:
                        say(line)
            if dry_run:
                say("dry run: every check passed, nothing was started")
                return 0
            failure = _run(config, env, start, stop_after, say, signals)
    except Interrupted as interruption:
        say(f"interrupted by {interruption}; every process was ended")
        return SIGNAL_EXIT + interruption.number
    return _conclude(failure, Path(config.output.directory) / LOGS, say)


def _run(
    config: RunConfig,
    env: dict[str, str],
    resume_from: Path | None,
    stop_after: int | None,
    say: Callable[[str], None],
    signals: _Signals,
) -> Failure | None:
    run = Path(config.output.directory)
    logs = run / LOGS
    logs.mkdir(parents=True, exist_ok=True)
    status.clear(logs)
    config.save(run / RESOLVED)
    (logs / PROGRESS).write_text("", encoding="utf-8")
    arguments = [str(run / RESOLVED)]
    if resume_from is not None:
        arguments += ["--resume", str(resume_from)]
    if stop_after is not None:
        arguments += ["--stop-after", str(stop_after)]
    world = config.layout.world_size
    tail = _Tail(logs / PROGRESS, say)

    def tick() -> None:
        tail.show()
        signals.check()

    signals.deferred = True
    with Ranks(command_line(WORKER, arguments, world, logs), env, world, logs) as ranks:
        failure = ranks.watch(config.launch.timeout_s, config.launch.stall_s, tick)
    tail.show()
    return failure


def _conclude(failure: Failure | None, logs: Path, say: Callable[[str], None]) -> int:
    if failure is None:
        return 0
    who = "the run" if failure.rank is None else f"rank {failure.rank}"
    if failure.kind == "user":
        raise UserError(f"{who}: {failure.message}")
    if failure.tail and (failure.kind == "defect" or failure.message.startswith("died") or failure.rank is None):
        say(f"--- end of the log of {who} ---\n{failure.tail}\n---")
    say(f"failed: {who}: {failure.message}; every process was ended")
    if failure.rank is not None:
        say(f"log: {worker_log(logs, failure.rank)}")
    return FAILED


def _data(config: RunConfig, model: preflight.Model, dry_run: bool, say: Callable[[str], None]) -> PreparedData | None:
    """The prepared data; made here if the configuration names text. None in a dry run whose data is yet to be made."""
    directory, data = config.data_directory, config.data
    if data.path is not None:
        return PreparedData.read(directory)
    assert data.seq_length is not None
    preflight.check_length(data.seq_length, model)
    config.parallel.check(model.family, model.config, config.layout, data.seq_length)
    tokenizer = Path(data.tokenizer) if data.tokenizer is not None else model.directory
    settings: dict[str, Any] = {
        "seq_length": data.seq_length, "validation_fraction": data.validation_fraction, "seed": data.seed,
        "field": data.field, "max_bytes": data.max_bytes,
    }  # fmt: skip
    facts = read_tokenizer(tokenizer)
    if (directory / records.NAME).is_file():
        found = PreparedData.read(directory)
        wanted = {**settings, "text": list(data.text)}
        is_same = {name: found.request.get(name) for name in wanted} == wanted
        if is_same and found.tokenizer["sha256"] == facts.sha256:
            return found
        if config.checkpoint.is_resumed:
            raise UserError(f"{directory}: was prepared with other settings than the run's data section; restore those")
        if not dry_run:
            shutil.rmtree(directory)
    if dry_run:
        say(f"data: would be prepared from {', '.join(data.text)}")
        return None
    say(f"data: preparing {', '.join(data.text)}")
    prepare(data.text, tokenizer, directory, processes=data.processes, track=_tracker(say), **settings)
    return PreparedData.read(directory)


def _tracker(say: Callable[[str], None]) -> Tracker:
    @contextmanager
    def track(title: str, total: int) -> Iterator[Callable[[int], None]]:
        done, last = 0, time.monotonic()

        def advance(amount: int) -> None:
            nonlocal done, last
            done += amount
            if time.monotonic() - last >= PROGRESS_INTERVAL_S:
                last = time.monotonic()
                say(f"{title}: {100 * done / max(total, 1):.0f}%")

        yield advance

    return track


class _Tail:
    """Passes on what was appended to a file since the last look, in whole lines."""

    def __init__(self, path: Path, say: Callable[[str], None]) -> None:
        self._path, self._say, self._position = path, say, 0

    def show(self) -> None:
        with self._path.open("rb") as file:
            file.seek(self._position)
            new = file.read()
        complete = new[: new.rfind(b"\n") + 1]
        self._position += len(complete)
        for line in complete.decode("utf-8").splitlines():
            self._say(line)


class _Signals:
    """Turns SIGINT and SIGTERM into `Interrupted`. A context manager.

    While `deferred` the signal is only noted and `check` raises, so that none strikes between the start of the
    processes and the block that ends them, nor while they are being ended.
    """

    def __init__(self) -> None:
        self.deferred = False
        self._noted: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> _Signals:
        self._before = {number: signal.signal(number, self._handle) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def check(self) -> None:
        """Raises what was noted."""
        if self._noted is not None:
            raise Interrupted(self._noted)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._noted = number
        if not self.deferred:
            self.deferred = True  # once is enough: what cleans up now is not disturbed again
            raise Interrupted(number)


def _to_stdout(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
