"""`Prefetcher`: runs an iterator in a thread, a few items ahead."""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Generator
from typing import Any, Generic, TypeVar

T = TypeVar("T")
POLL_S = 0.1
"""How often a thread with nothing to do looks whether it should end."""
JOIN_S = 10.0


class Prefetcher(Generic[T]):
    """An iterator over the items of a generator, which runs in a thread of its own up to `ahead` items ahead.

    What the generator raises is raised where its item would have come. `close` ends the thread; it is also ended when
    the prefetcher is no longer used, and before the interpreter ends.
    """

    def __init__(self, items: Generator[T, None, None], ahead: int) -> None:
        assert ahead >= 1, ahead
        self._queue: queue.Queue[tuple[T | None, BaseException | None]] = queue.Queue(ahead)
        self._stop = threading.Event()
        # The thread must not hold the prefetcher, or nobody would notice that it is no longer used.
        thread = threading.Thread(target=_fill, args=(items, self._queue, self._stop), name="prefetch", daemon=True)
        self._finish = weakref.finalize(self, _end, thread, self._stop)
        self._end: BaseException | None = None
        thread.start()

    def __iter__(self) -> Prefetcher[T]:
        return self

    def __next__(self) -> T:
        if self._end is None:
            item, self._end = self._queue.get()
            if self._end is None:
                return item  # type: ignore[return-value]
        raise self._end

    def close(self) -> None:
        """Ends the thread; nothing can be taken after it."""
        self._finish()
        self._end = StopIteration()


def _fill(items: Generator[T, None, None], into: queue.Queue[Any], stop: threading.Event) -> None:
    try:
        for item in items:
            if not _put((item, None), into, stop):
                return
        _put((None, StopIteration()), into, stop)
    except BaseException as error:  # noqa: BLE001  it belongs to whoever takes the items
        _put((None, error), into, stop)
    finally:
        items.close()


def _put(item: Any, into: queue.Queue[Any], stop: threading.Event) -> bool:
    while not stop.is_set():
        try:
            into.put(item, timeout=POLL_S)
            return True
        except queue.Full:
            continue
    return False


def _end(thread: threading.Thread, stop: threading.Event) -> None:
    stop.set()
    if thread is not threading.current_thread():
        thread.join(JOIN_S)
