"""`Connection`: messages between the launchers of two machines, and how long the other one has been silent.

A message is a JSON object in a line, over TCP. Both sides send one each second, so that a cut cable, which closes no
connection, is noticed. There is no secret in it: the network of a cluster is trusted, as MindSpore's own ports are.
"""

from __future__ import annotations

import json
import queue
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import Any

PING_S = 1.0
CLOSE_S = 2.0
"""How long a side that ends waits for the other one's end."""
SEND_S = 2.0
"""Longest wait for room in a connection's buffer; longer, and the other side is gone."""
PING = "ping"
Message = dict[str, Any]


class Connection:
    """One connection. Its threads only move messages; whoever owns it decides.

    Args:
        peer: connected socket.
        news: what a ping carries, asked before each.
    """

    def __init__(self, peer: socket.socket, news: Callable[[], Message]) -> None:
        self._socket, self._news = peer, news
        self._lock = threading.Lock()
        self._heard = time.monotonic()
        self._messages: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self.is_closed = False
        """Whether the other side has ended it, and everything that it sent was received."""
        self._is_writable = True
        self.latest: Message = {}
        """What the other side's last ping carried."""
        peer.settimeout(None)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # A blocked send ends after this long, without a time limit for reading.
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", int(SEND_S), 0))
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        threading.Thread(target=self._ping, daemon=True).start()

    def send(self, kind: str, **values: Any) -> None:
        """Sends a message; to a peer that is gone it does nothing, as its silence tells."""
        line = json.dumps({"kind": kind, **values}).encode() + b"\n"
        with self._lock:
            try:
                self._socket.sendall(line)
            except OSError:
                self._is_writable = False  # what was received before can still be read

    def receive(self) -> Message | None:
        """The next message that is no ping; None where there is none yet."""
        try:
            return self._messages.get_nowait()
        except queue.Empty:
            return None

    @property
    def silence_s(self) -> float:
        """Seconds since the other side was heard; infinite after its end."""
        return float("inf") if self.is_closed else time.monotonic() - self._heard

    def close(self) -> None:
        """Ends the connection; what was sent before still arrives, if the other side ends its own in time.

        A socket that is closed while something unread is in it tells the other side to forget what it has not read.
        """
        self._is_writable = False
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            self.is_closed = True  # the other side was first
        self._reader.join(CLOSE_S)
        self._socket.close()
        self.is_closed = True

    def _read(self) -> None:
        try:
            with self._socket.makefile("rb") as lines:
                for line in lines:
                    self._heard = time.monotonic()
                    self._take(json.loads(line))
        except (OSError, ValueError):
            pass  # cut off or no launcher at all: closed either way
        self.is_closed = True

    def _take(self, message: Message) -> None:
        if message["kind"] == PING:
            self.latest = message
        else:
            self._messages.put(message)

    def _ping(self) -> None:
        while self._is_writable and not self.is_closed:
            self.send(PING, **self._news())
            time.sleep(PING_S)
