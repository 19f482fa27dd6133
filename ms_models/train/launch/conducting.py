"""The first machine's part, or that of the only one: attempts, and restarts from the last good checkpoint."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from mappings.errors import UserError
from ms_models.train.checkpoints.recovery import last_good
from ms_models.train.checkpoints.run_directory import PROGRESS, complete_checkpoints
from ms_models.train.config import RESOLVED, RunConfig
from ms_models.train.config.flat import flat
from ms_models.train.launch import beats, status
from ms_models.train.launch.attempt import Local, run_attempt, worker_arguments
from ms_models.train.launch.failure import Failure
from ms_models.train.launch.hub import Hub
from ms_models.train.launch.merged_log import write_merged
from ms_models.train.launch.peers import Peers
from ms_models.train.launch.processes import worker_log
from ms_models.train.launch.restarting import Attempt, Restarts
from ms_models.train.launch.signals import Interrupted
from ms_models.train.launch.spoke import TOKEN
from ms_models.train.run_events import note

FAILED, COULD_NOT_RUN = 1, 2
PAUSE_POLL_S = 0.2
SPEECHLESS = ("died", "lost", "stalled", "launcher", "timeout")
"""Causes of failures that the first rank may not write down itself."""


@contextmanager
def meeting(local: Local) -> Iterator[Peers]:
    """The other machines, which may come from now on and are let go at the end.

    Raises:
        UserError: the port cannot be opened.
    """
    if local.place.nodes == 1:
        yield Peers()
        return
    token, launch = uuid.uuid4().hex, local.config.launch
    local.logs.mkdir(parents=True, exist_ok=True)
    (local.logs / TOKEN).write_text(token, encoding="utf-8")
    with Hub(local.place, shared_facts(local.config), token, launch.link_s, local.say) as hub:
        yield hub


def conduct(local: Local, peers: Peers, resume: Path | None, stop_after: int | None) -> int:
    """Runs to the end.

    Args:
        local: the run on this machine.
        peers: the other machines, see `meeting`.
        resume: checkpoint directory that the first attempt goes on from.
        stop_after: save and stop after this step.

    Returns:
        0 when the run reached its end, 1 when it failed; why was said.

    Raises:
        UserError: a rank met a fault of the input, or machines are missing.
    """
    logs = local.logs
    logs.mkdir(parents=True, exist_ok=True)
    local.config.save(Path(local.config.output.directory) / RESOLVED)
    run = _Run(local, peers, stop_after)
    try:
        return run.to_the_end(None if resume is None else str(resume))
    except Interrupted as interruption:
        run.leave(Failure(f"interrupted by {interruption}", cause="interrupted", node=0), FAILED)
        raise
    except UserError as error:
        run.leave(Failure(str(error), cause="user", node=0), COULD_NOT_RUN)
        raise
    finally:
        write_merged(logs)


def shared_facts(config: RunConfig) -> dict[str, object]:
    """What all machines of a run must have set alike."""
    plain = json.loads(json.dumps(config.to_dict()))
    return {name: value for name, value in flat(plain).items() if name != "launch.node_rank"}


class _Run:
    def __init__(self, local: Local, peers: Peers, stop_after: int | None) -> None:
        self._local, self._peers, self._stop_after = local, peers, stop_after
        self._directory = Path(local.config.output.directory)
        launch = local.config.launch
        self._restarts = Restarts(self._directory, launch.restarts, launch.restart_pause_s)

    def to_the_end(self, resume: str | None) -> int:
        """Attempts until one succeeds or none may follow."""
        attempt = Attempt(1, resume)
        while True:
            failure, step = self._try(attempt)
            if failure is None:
                self._end(0, "")
                return 0
            if failure.cause == "user":
                raise UserError(f"{failure.who}: {failure.message}")
            self._tell(failure)
            if failure.cause in SPEECHLESS:
                note(self._directory, "failure", step, kind=failure.cause, rank=failure.rank, message=failure.message)
            refusal = self._restarts.refusal(failure, attempt, step)
            if refusal is None:
                attempt = self._prepare_next(attempt, failure, step)
                continue
            if refusal:
                self._local.say(refusal)
            self._end(FAILED, f"{failure.who}: {failure.message}")
            return FAILED

    def leave(self, failure: Failure, exit_code: int) -> None:
        """Tells the other machines that this one gives up."""
        if isinstance(self._peers, Hub):
            self._peers.stop(failure)
            self._peers.end(exit_code, failure.message)

    def _try(self, attempt: Attempt) -> tuple[Failure | None, int]:
        local, peers = self._local, self._peers
        arguments = worker_arguments(local.config, attempt.resume, self._stop_after)
        on_failure = peers.stop if isinstance(peers, Hub) else _nothing
        if isinstance(peers, Hub):
            peers.gather(local.config.launch.join_s, local.signals.check)
        for clear in (status.clear, beats.clear):
            clear(local.logs)
        (local.logs / PROGRESS).write_text("", encoding="utf-8")
        port = local.place.scheduler_port()
        if isinstance(peers, Hub):
            peers.start(attempt.number, arguments=arguments, port=port)
        failure, step = run_attempt(local, peers, attempt.number, arguments, port, on_failure)
        if failure is not None and failure.cause == "timeout":
            limit = local.config.launch.timeout_s
            failure = replace(failure, message=f"launch.timeout_s: not finished after {limit:g} s, in step {step}")
        if failure is None and isinstance(peers, Hub):
            peers.finish()
        return failure, step

    def _prepare_next(self, attempt: Attempt, failure: Failure, step: int) -> Attempt:
        local = self._local
        resume = None
        if attempt.resume is not None or complete_checkpoints(self._directory):
            found, lines = last_good(self._directory)
            resume = str(found)
            for line in lines:
                local.say(line)
        pause = self._restarts.take(failure, attempt, step, resume)
        whence = "the beginning" if resume is None else Path(resume).name
        local.say(f"restart {self._restarts.used} of {self._restarts.allowed} from {whence}"
                  + (f" in {pause:g} s" if pause else ""))  # fmt: skip
        until = time.monotonic() + pause
        while time.monotonic() < until:
            local.signals.check()
            time.sleep(min(PAUSE_POLL_S, pause))
        return Attempt(attempt.number + 1, resume)

    def _tell(self, failure: Failure) -> None:
        say = self._local.say
        if failure.tail and failure.cause in ("died", "defect", "launcher"):
            say(f"--- end of the log of {failure.who} ---\n{failure.tail}\n---")
        say(f"failed: {failure.who}: {failure.message}; every process was ended")
        if failure.rank is not None:
            say(f"log: {worker_log(self._local.logs, failure.rank)}")

    def _end(self, exit_code: int, message: str) -> None:
        if isinstance(self._peers, Hub):
            self._peers.end(exit_code, message)


def _nothing(failure: Failure) -> None:
    """There are no other machines to stop."""
