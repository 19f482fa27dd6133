"""Which lines of the repository's functions ran while a module was built, called and differentiated."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

FILE = "lines.json"


@contextmanager
def recorded(root: Path, out: Path) -> Iterator[None]:
    """Adds the lines that run inside to a file.

    Lines of modules and class bodies run when they are imported and are left out. What another thread runs is not seen.

    Args:
        root: of the repository; other code runs untraced.
        out: directory of the file.
    """
    start = f"{root}/"
    seen: dict[str, set[int]] = {name: set(lines) for name, lines in lines_run(out).items()}

    def enter(frame: FrameType, _event: str, _argument: Any) -> Callable[..., Any] | None:
        code = frame.f_code
        if not code.co_filename.startswith(start) or not code.co_flags & inspect.CO_OPTIMIZED:
            return None
        lines = seen.setdefault(code.co_filename.removeprefix(start), set())

        def local(inner: FrameType, _event: str, _argument: Any) -> Callable[..., Any]:
            lines.add(inner.f_lineno)
            return local

        lines.add(frame.f_lineno)
        return local

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        yield
    finally:
        sys.settrace(before)
        body = {name: sorted(lines) for name, lines in sorted(seen.items())}
        (out / FILE).write_text(json.dumps(body), encoding="utf-8")


def lines_run(out: Path) -> Mapping[str, list[int]]:
    """What was recorded, by path relative to the repository; nothing if nothing was."""
    path = out / FILE
    if not path.is_file():
        return {}
    body: dict[str, list[int]] = json.loads(path.read_text(encoding="utf-8"))
    return body
