"""Processes that read and encode text, and write shards."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import numpy as np

from mappings.errors import UserError
from ms_models.data.reading import ReadingOptions, Task, read_documents
from ms_models.data.tokenization import load_tokenizer

P = ParamSpec("P")
T = TypeVar("T")
AHEAD = 3
"""Tasks in flight per process; bounds the memory."""
BATCH_CHARACTERS = 1 << 20
"""Text that is encoded in one call."""


@dataclass(frozen=True)
class Encodings:
    """The documents of one task."""

    keys: list[str]
    problems: list[str]
    """`undecodable`, `null`, or empty; a document with a problem has no tokens."""
    lengths: np.ndarray
    """Tokens of each document, int64."""
    tokens: np.ndarray
    """Of all documents, one after the other, int32, without special tokens."""

    def documents(self) -> Iterator[tuple[str, str, np.ndarray]]:
        """Key, problem and tokens of each."""
        yield from zip(self.keys, self.problems, np.split(self.tokens, np.cumsum(self.lengths)[:-1]), strict=True)


def default_processes() -> int:
    """0.7 of the cores that this process may use, and at least 2 where there are as many."""
    cores = len(os.sched_getaffinity(0))
    return min(cores, max(2, int(0.7 * cores)))


class Workers:
    """A context manager over `processes` processes that encode; with one, everything is done by the caller.

    A third as many again write shards, which takes a fifth of the time of encoding: each of them imports MindSpore,
    which takes seconds, meanwhile. Processes are spawned: neither MindSpore nor the tokenizer's own threads survive a
    fork.
    """

    def __init__(self, processes: int, tokenizer: Path, options: ReadingOptions) -> None:
        self.processes = processes
        self._pool: ProcessPoolExecutor | None = None
        self._writers: ProcessPoolExecutor | None = None
        if processes == 1:
            _start(tokenizer, options)
        else:
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(processes, context, _start_process, (tokenizer, options))
            self._writers = ProcessPoolExecutor(max(1, processes // 3), context, _start_writer)
            self._writers.submit(int)  # a process starts when there is something to do

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        for pool in (self._pool, self._writers):
            if pool is not None:
                pool.shutdown(cancel_futures=True)

    def encode(self, tasks: Iterable[Task]) -> Iterator[tuple[Task, Encodings]]:
        """Encodes every document, in the order of the tasks whatever the number of processes.

        Raises:
            UserError: as `read_documents`, or a process died.
        """
        if self._pool is None:
            yield from ((task, encode_task(task)) for task in tasks)
            return
        waiting: deque[tuple[Task, Future[Encodings]]] = deque()
        for task in tasks:
            waiting.append((task, self._submit(self._pool, encode_task, task)))
            if len(waiting) >= AHEAD * self.processes:
                first, future = waiting.popleft()
                yield first, _result(future)
        for task, future in waiting:
            yield task, _result(future)

    def submit(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Has a process that writes call a function of a module; with one process it is called here and now.

        Raises:
            UserError: the process died.
        """
        if self._writers is not None:
            return self._submit(self._writers, function, *args, **kwargs)
        future: Future[T] = Future()
        future.set_result(function(*args, **kwargs))
        return future

    def _submit(
        self, pool: ProcessPoolExecutor, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> Future[T]:
        try:
            return pool.submit(function, *args, **kwargs)
        except BrokenProcessPool as error:
            raise _died() from error


def encode_task(task: Task) -> Encodings:
    """Reads and encodes one task, in a process that `Workers` set up.

    Raises:
        UserError: as `read_documents`.
    """
    keys, problems, ids = [], [], []
    for group in _groups(task):
        texts = [document.text for document in group if document.text is not None]
        encoded = iter(_worker["encode"](texts, add_special_tokens=False))
        for document in group:
            keys.append(document.key)
            problems.append(document.problem)
            ids.append(np.array([] if document.text is None else next(encoded).ids, np.int32))
    lengths = np.array([len(part) for part in ids], np.int64)
    return Encodings(keys, problems, lengths, np.concatenate([np.zeros(0, np.int32), *ids]))


def _groups(task: Task) -> Iterator[list[Any]]:
    """Documents of about `BATCH_CHARACTERS`: what the tokenizer makes of a text takes far more room than the text."""
    group, size = [], 0
    for document in read_documents(task, _worker["options"]):
        group.append(document)
        size += len(document.text or "")
        if size >= BATCH_CHARACTERS:
            yield group
            group, size = [], 0
    if group:
        yield group


def _result(future: Future[T]) -> T:
    try:
        return future.result()
    except BrokenProcessPool as error:
        raise _died() from error


_worker: dict[str, Any] = {}


def _start_process(tokenizer: Path, options: ReadingOptions) -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes are the parallelism
    _follow_parent()
    _start(tokenizer, options)


def _start_writer() -> None:
    _follow_parent()
    import mindspore.mindrecord  # noqa: F401  while there is nothing to write yet


def _follow_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent too, which ends the pool
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A parent that was killed cannot end its processes."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _start(tokenizer: Path, options: ReadingOptions) -> None:
    loaded = load_tokenizer(tokenizer)
    # the fast one leaves out where in the text each token was
    _worker.update(encode=getattr(loaded, "encode_batch_fast", loaded.encode_batch), options=options)


def _died() -> UserError:
    return UserError("data: a process died that encodes text or writes shards (out of memory?); take fewer `processes`")
