"""`Hub`: on the first machine of several, the others' launchers. It lets them join, and tells them what to do."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mappings.errors import UserError
from ms_models.train.launch.beats import Beat
from ms_models.train.launch.failure import Failure
from ms_models.train.launch.link import PING_S, Connection, Message
from ms_models.train.launch.peers import Peers
from ms_models.train.launch.place import NodePlace, describe
from ms_models.train.launch.stacks import ANSWER_S, Trace

POLL_S = 0.1
DOUBT_S = 3 * PING_S
"""Silence from which on the loss of a machine is possible."""


@dataclass
class Member:
    """Another machine."""

    link: Connection
    host: str
    is_ready: bool = False
    is_reported: bool = False
    """Whether its loss is among the failures of the attempt."""


class Hub(Peers):
    """The other machines. A context manager: they are let go at its end.

    Args:
        place: of this machine.
        facts: the configuration, flat, which all machines must share.
        token: in the run directory, for the others to see that it is theirs, too.
        link_s: silence after which a machine is lost.
        say: receives lines about who comes and goes.

    Raises:
        UserError: the port cannot be opened.
    """

    def __init__(
        self, place: NodePlace, facts: Mapping[str, Any], token: str, link_s: float, say: Callable[[str], None]
    ) -> None:
        self._place, self._facts, self._token, self._link_s, self._say = place, dict(facts), token, link_s, say
        self.members: dict[int, Member] = {}
        self._waiting: list[Connection] = []
        self._failures: list[Failure] = []
        self._traces: dict[int, dict[int, Trace]] = {}
        self._attempt = 0
        try:
            family = socket.getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM)[0][0]
            self._server = socket.create_server((place.host, place.port), family=family)
        except OSError as error:
            raise UserError(
                f"launch.master: cannot listen on {place.host}:{place.port} ({error.strerror}); name an address of "
                "this machine, which is node 0, and a free port"
            ) from error
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Hub:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._server.close()
        for link in self._waiting:
            link.send("refused", message=f"it ended before the start ({error})")
        for link in [*self._waiting, *(member.link for member in self.members.values())]:
            link.close()

    def gather(self, wait_s: float, tick: Callable[[], None]) -> None:
        """Waits until every machine is there.

        Raises:
            UserError: they are not within `wait_s` seconds; names those that are missing.
        """
        deadline, told = time.monotonic() + wait_s, False
        while missing := self._missing():
            self._attend()
            tick()
            if time.monotonic() > deadline:
                nodes = ", ".join(map(str, missing))
                raise UserError(
                    f"launch.join_s: node {nodes} did not join {self._place.host}:{self._place.port} within "
                    f"{wait_s:g} s; start the same command there with --node-rank {nodes}"
                )
            if not told:
                told = True
                self._say(f"nodes: waiting at {self._place.host}:{self._place.port} for {', '.join(map(str, missing))}")
            time.sleep(POLL_S)

    def start(self, attempt: int, **values: Any) -> None:
        """All machines begin an attempt."""
        self._attempt = attempt
        self._failures.clear()
        self._traces.clear()
        for member in self.members.values():
            member.is_reported = False
            member.link.latest = {}
        self._tell("start", attempt=attempt, **values)

    def stop(self, failure: Failure) -> None:
        """All machines end the attempt."""
        self._tell("stop", attempt=self._attempt, failure=failure.to_dict())

    def finish(self) -> None:
        """Every rank has finished: the machines may let their processes end and are done."""
        self._tell("finish", attempt=self._attempt)

    def end(self, exit_code: int, message: str) -> None:
        """There is no further attempt."""
        self._tell("end", exit_code=exit_code, message=message)

    def beats(self) -> dict[int, Beat]:
        """See `Peers`."""
        return {int(rank): Beat(*beat) for news in self._news() for rank, beat in news["beats"].items()}

    def running(self) -> list[int]:
        """See `Peers`."""
        nodes = range(1, self._place.nodes)
        told = {node: self.members[node].link.latest for node in nodes if node in self.members}
        return [
            rank
            for node in nodes
            for rank in (
                told[node]["running"]
                if told.get(node, {}).get("attempt") == self._attempt
                else self._place.ranks_of(node)
            )
        ]

    def failures(self) -> list[Failure]:
        """See `Peers`."""
        self._attend()
        for node, member in self.members.items():
            if member.link.silence_s > self._link_s and not member.is_reported:
                member.is_reported = True
                how = "its launcher is gone" if member.link.is_closed else f"not heard for {self._link_s:g} s"
                self._failures.append(self._loss(node, how))
        return list(self._failures)

    def doubtful_s(self) -> float:
        """See `Peers`."""
        silences = [m.link.silence_s for m in self.members.values() if DOUBT_S < m.link.silence_s <= self._link_s]
        return self._link_s - min(silences) + PING_S if silences else 0.0

    def traces(self) -> dict[int, Trace]:
        """See `Peers`."""
        self._tell("stacks", attempt=self._attempt)
        deadline = time.monotonic() + ANSWER_S + 2 * PING_S
        while len(self._traces) < len(self.members) and time.monotonic() < deadline:
            self._attend()
            time.sleep(POLL_S)
        return {rank: trace for found in self._traces.values() for rank, trace in found.items()}

    def _loss(self, node: int, how: str) -> Failure:
        where = f"{self.members[node].host}, {describe(self._place.ranks_of(node))}"
        message = f"lost: {how} ({where}); see to the machine and the network between"
        return Failure(message, cause="lost", node=node, at=time.time())

    def _news(self) -> list[Message]:
        latest = [member.link.latest for member in self.members.values()]
        return [news for news in latest if news.get("attempt") == self._attempt]

    def _missing(self) -> list[int]:
        alive = {
            node for node, member in self.members.items() if member.is_ready and member.link.silence_s <= self._link_s
        }
        return [node for node in range(1, self._place.nodes) if node not in alive]

    def _tell(self, kind: str, **values: Any) -> None:
        for member in self.members.values():
            member.link.send(kind, **values)

    def _accept(self) -> None:
        while True:
            try:
                peer, _ = self._server.accept()
            except OSError:
                return  # closed
            self._waiting.append(Connection(peer, dict))

    def _attend(self) -> None:
        for link in list(self._waiting):
            if link.is_closed:
                self._waiting.remove(link)
            elif (message := link.receive()) is not None:
                self._waiting.remove(link)
                self._welcome(link, message)
        for node, member in list(self.members.items()):
            while (message := member.link.receive()) is not None:
                self._handle(node, member, message)

    def _welcome(self, link: Connection, message: Message) -> None:
        node = int(message.get("node", 0))
        if message["kind"] != "hello" or node not in range(1, self._place.nodes):
            return link.close()
        if problem := self._problem(node, message):
            link.send("refused", message=problem)
            return self._say(f"node {node} ({message['host']}) was refused: {problem}")
        if (before := self.members.get(node)) is not None:
            before.link.close()
            if not before.is_reported:
                self._failures.append(self._loss(node, "its launcher was started anew"))
        # It takes part from the next attempt on; until then nobody counts on it.
        self.members[node] = Member(link, message["host"], is_reported=True)
        return link.send("welcome", token=self._token)

    def _problem(self, node: int, message: Message) -> str | None:
        known = self.members.get(node)
        if known is not None and known.link.silence_s < DOUBT_S and not known.is_reported:
            return f"node {node} has joined already, from {known.host}; give each machine a --node-rank of its own"
        theirs: dict[str, Any] = message["facts"]
        for name in sorted({*theirs, *self._facts}):
            if theirs.get(name) != self._facts.get(name):
                return (f"{name} is {theirs.get(name)} on node {node} and {self._facts.get(name)} on node 0; start all "
                        "machines with one configuration")  # fmt: skip
        return None

    def _handle(self, node: int, member: Member, message: Message) -> None:
        if message["kind"] == "ready":
            member.is_ready = True
            ranks = describe(self._place.ranks_of(node))
            self._say(f"node {node} ({member.host}) joined: {ranks}")
        elif message.get("attempt") != self._attempt:
            return  # of one that is over
        elif message["kind"] == "failed":
            self._failures.append(Failure.from_dict(message["failure"]))
        elif message["kind"] == "stacks":
            self._traces[node] = {int(rank): Trace.from_dict(trace) for rank, trace in message["traces"].items()}

    def publish(self, beats: Mapping[int, Beat], running: Sequence[int]) -> None:
        """See `Peers`; the others need not know."""
