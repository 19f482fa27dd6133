"""`Spoke`: on each machine but the first, the first one's launcher. It says when to start and to stop."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any

from mappings.errors import UserError
from ms_models.train.launch.beats import Beat
from ms_models.train.launch.failure import Failure
from ms_models.train.launch.link import PING_S, Connection, Message
from ms_models.train.launch.peers import Peers
from ms_models.train.launch.place import NodePlace
from ms_models.train.launch.stacks import Trace

POLL_S = 0.1
RETRY_S = 1.0
SHARED_S = 60.0
"""How long a file that another machine wrote may take to appear: network file systems keep what they know of a
directory for up to a minute."""
TOKEN = "token.txt"
"""In the directory of logs: written by the first machine, read by the others to see that they share it."""


class LostMaster(Exception):
    """The first machine is not heard any more."""


class Spoke(Peers):
    """The first machine. A context manager: it is left at the end.

    Args:
        place: of this machine.
        facts: the configuration, flat.
        logs: directory of logs, which the first machine must share.
        link_s: silence after which the first machine is lost.
    """

    decides = False

    def __init__(self, place: NodePlace, facts: Mapping[str, Any], logs: Path, link_s: float) -> None:
        self._place, self._facts, self._logs, self._link_s = place, dict(facts), logs, link_s
        self._link: Connection | None = None
        self._attempt = 0
        self._news: Message = {}
        self._verdict: Failure | None = None
        self._wants_traces = self._is_over = False
        self._next: Message | None = None

    def __enter__(self) -> Spoke:
        return self

    def __exit__(self, *_: object) -> None:
        if self._link is not None:
            self._link.close()

    def join(self, wait_s: float, tick: Callable[[], None]) -> None:
        """Reaches the first machine and proves that both share the run directory.

        Raises:
            UserError: it does not answer within `wait_s` seconds, refuses, or shares no directory.
        """
        deadline = time.monotonic() + wait_s
        while True:
            tick()
            try:
                answer = self._hello(tick)
                break
            except (OSError, LostMaster) as error:  # not there yet, ended just now, or another program
                if time.monotonic() > deadline:
                    raise UserError(
                        f"launch.master: node 0 did not answer at {self._place.host}:{self._place.port} within "
                        f"{wait_s:g} s ({error}); start it, or correct --master"
                    ) from error
                time.sleep(RETRY_S)
        if answer["kind"] == "refused":
            raise UserError(f"node 0 refused this machine: {answer['message']}")
        assert self._link is not None
        self._check_shared(answer["token"], tick)
        self._link.send("ready")

    def _hello(self, tick: Callable[[], None]) -> Message:
        peer = socket.create_connection((self._place.host, self._place.port), timeout=RETRY_S)
        self._link = Connection(peer, lambda: self._news)
        self._link.send("hello", node=self._place.node, host=socket.gethostname(), facts=self._facts)
        try:
            return self._await(("welcome", "refused"), tick)
        except LostMaster:
            self._link.close()
            raise

    def await_start(self, tick: Callable[[], None]) -> Message:
        """What follows: a `start` or the `end`.

        Raises:
            LostMaster: the first machine is not heard any more.
        """
        message = self._next or self._await(("start", "end"), tick)
        self._next = None
        self._attempt = message.get("attempt", self._attempt)
        self._news, self._verdict, self._wants_traces, self._is_over = {}, None, False, False
        return message

    def publish(self, beats: Mapping[int, Beat], running: Sequence[int]) -> None:
        """See `Peers`; the next ping carries it."""
        told = {str(rank): astuple(beat) for rank, beat in beats.items()}
        self._news = {"attempt": self._attempt, "beats": told, "running": list(running)}

    def report(self, failure: Failure) -> None:
        """See `Peers`."""
        assert self._link is not None
        self._link.send("failed", attempt=self._attempt, failure=failure.to_dict())

    def failures(self) -> list[Failure]:
        """See `Peers`: what the first machine gave as the reason, or its own loss."""
        self._attend()
        assert self._link is not None
        is_let_go = self._is_over or self._next is not None
        if self._verdict is None and not is_let_go and self._link.silence_s > self._link_s:
            how = "its launcher is gone" if self._link.is_closed else f"not heard for {self._link_s:g} s"
            message = f"lost: {how} ({self._place.host}:{self._place.port}); see to the machine and the network between"
            self._verdict = Failure(message, cause="lost", node=0, at=time.time())
        return [] if self._verdict is None else [self._verdict]

    def wants_traces(self) -> bool:
        """See `Peers`."""
        return self._wants_traces

    def answer(self, traces: Mapping[int, Trace]) -> None:
        """See `Peers`."""
        assert self._link is not None
        self._wants_traces = False
        told = {str(rank): trace.to_dict() for rank, trace in traces.items()}
        self._link.send("stacks", attempt=self._attempt, traces=told)

    def is_over(self) -> bool:
        """See `Peers`."""
        self._attend()
        return self._is_over

    def _attend(self) -> None:
        assert self._link is not None
        while (message := self._link.receive()) is not None:
            if message["kind"] in ("start", "end"):
                self._next = message
            elif message.get("attempt") != self._attempt:
                continue  # of one that is over
            elif message["kind"] == "stop":
                self._verdict = Failure.from_dict(message["failure"])
            elif message["kind"] == "stacks":
                self._wants_traces = True
            elif message["kind"] == "finish":
                self._is_over = True

    def _await(self, kinds: tuple[str, ...], tick: Callable[[], None]) -> Message:
        assert self._link is not None
        while True:
            while (message := self._link.receive()) is not None:
                if message["kind"] in kinds:
                    return message
            if self._link.silence_s > max(self._link_s, 2 * PING_S):
                raise LostMaster(f"node 0 ({self._place.host}:{self._place.port}) is not heard any more")
            tick()
            time.sleep(POLL_S)

    def _check_shared(self, token: str, tick: Callable[[], None]) -> None:
        deadline, path = time.monotonic() + SHARED_S, self._logs / TOKEN
        while not path.is_file() or path.read_text(encoding="utf-8") != token:
            if time.monotonic() > deadline:
                raise UserError(
                    f"output.directory {self._logs.parent}: what node 0 wrote there is not seen here after "
                    f"{SHARED_S:g} s; all machines need one shared directory, under one path"
                )
            tick()
            time.sleep(RETRY_S)
