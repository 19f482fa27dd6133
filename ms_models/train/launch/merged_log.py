"""The logs of all ranks as one, by time: `merged.log`, each line `TIME RANK text`.

Lines are stamped when the launcher of their machine reads them, five times a second, so that a print of a library has a
time, too, and a line keeps its place within its rank. With several machines each writes a file of its own; `merge`
brings them together, as far as their clocks agree. Imports no MindSpore.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from ms_models.train.launch.place import NodePlace

MERGED = "merged.log"
LAUNCHER = "launcher"
WIDTH = 8
LINE = re.compile(r"(?P<time>\S+) +(?P<who>rank \d+|launcher(?: \d+)?|msrun(?: \d+)?|scheduler) +\| (?P<text>.*)")
MOST_BYTES = 1 << 20
"""Read of one log at a time, so that a flood of one rank does not hold up the watch."""


def part_name(node: int) -> str:
    """Where one of several machines writes."""
    return f"merged_node_{node}.log"


def _own_file(logs: Path, place: NodePlace) -> Path:
    # A run may go on with another number of machines; its first part then stays the first machine's.
    whole, part = logs / MERGED, logs / part_name(place.node)
    if place.nodes == 1 and not part.is_file():
        return whole
    if place.node == 0 and whole.is_file() and not part.is_file():
        whole.rename(part)
    return part


class LogMerger:
    """Follows the logs of this machine's ranks.

    Args:
        logs: directory of logs.
        place: which ranks.
        sources: name of each log to follow and what to call it.
    """

    def __init__(self, logs: Path, place: NodePlace, sources: dict[Path, str]) -> None:
        self._sources = sources
        self._positions = dict.fromkeys(sources, 0)
        self._partial = dict.fromkeys(sources, b"")
        self._who = LAUNCHER if place.nodes == 1 else f"{LAUNCHER} {place.node}"
        self._file = _own_file(logs, place).open("a", encoding="utf-8")

    def follow(self) -> None:
        """Takes over what was written since the last call."""
        for path in self._sources:
            self._take(path, MOST_BYTES)

    def note(self, text: str) -> None:
        """A line of the launcher's own."""
        for line in text.splitlines():
            self._write(self._who, line)
        self._file.flush()

    def close(self) -> None:
        """Takes over the rest, last lines without an end included."""
        for path, who in self._sources.items():
            while self._take(path, MOST_BYTES):
                pass
            if rest := self._partial.pop(path):
                self._write(who, rest.decode("utf-8", errors="replace"))
        self._file.close()

    def _take(self, path: Path, most: int) -> bool:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            file.seek(self._positions[path])
            new = file.read(most)
        self._positions[path] += len(new)
        *lines, self._partial[path] = (self._partial[path] + new).split(b"\n")
        for line in lines:
            self._write(self._sources[path], line.decode("utf-8", errors="replace"))
        if lines:
            self._file.flush()
        return bool(new)

    def _write(self, who: str, text: str) -> None:
        stamp = datetime.now().astimezone().isoformat(timespec="milliseconds")
        self._file.write(f"{stamp} {who:<{WIDTH}} | {text}\n")


def parts(logs: Path) -> list[Path]:
    """The files to merge: one of each machine, or the only one."""
    return sorted(logs.glob("merged_node_*.log")) or [path for path in (logs / MERGED,) if path.is_file()]


def merge(logs: Path) -> Iterator[str]:
    """Lines of all machines by time, without their ends; those of a single file in its own order."""
    for _, line in heapq.merge(*map(_stamped, parts(logs)), key=lambda item: item[0]):
        yield line


def write_merged(logs: Path) -> None:
    """Writes `merged.log` of a run on several machines; that of a single one is there already."""
    if not (logs / part_name(0)).is_file():
        return
    temporary = logs / f"{MERGED}.tmp"
    with temporary.open("w", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in merge(logs))
    temporary.replace(logs / MERGED)


def rank_of(line: str) -> int | None:
    """The rank of a merged line; None for a launcher's or a scheduler's."""
    match = LINE.fullmatch(line)
    return int(match["who"][5:]) if match and match["who"].startswith("rank ") else None


def _stamped(path: Path) -> Iterator[tuple[float, str]]:
    last = 0.0
    with path.open(encoding="utf-8", errors="replace") as file:
        for raw in file:
            line = raw.rstrip("\n")
            if match := LINE.fullmatch(line):
                last = max(last, datetime.fromisoformat(match["time"]).timestamp())
            yield last, line
