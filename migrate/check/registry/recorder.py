"""Imports modules and writes down who registers which model type, in a process of its own.

    python recorder.py OUT.json DIRECTORY MODULE [MODULE ...]

Runs code of the repository, so only when asked for by name. Stands alone: it is run by path, in an environment that may
not have msmigrate.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path


def main(out: str, directory: str, modules: list[str]) -> int:
    """Records registrations, in order, and what importing ended in."""
    sys.path.insert(0, directory)
    events: list[dict[str, object]] = []
    result: dict[str, object] = {"events": events, "imported": [], "error": None}
    try:
        from transformers.models.auto import configuration_auto

        mapping = type(configuration_auto.CONFIG_MAPPING)
        original = mapping.register

        def register(self, key, value, exist_ok=False):  # type: ignore[no-untyped-def]
            taken = key in self._mapping or key in self._extra_content
            events.append(
                {
                    "name": key,
                    "class": f"{getattr(value, '__module__', '?')}.{getattr(value, '__qualname__', value)}",
                    "place": _caller(),
                    "taken": taken,
                    "exist_ok": bool(exist_ok),
                }
            )
            return original(self, key, value, exist_ok=exist_ok)

        mapping.register = register  # type: ignore[method-assign]
        for name in modules:
            __import__(name)
            result["imported"].append(name)  # type: ignore[attr-defined]
    except BaseException as error:  # noqa: BLE001 - whatever a foreign module raises is the result
        frames = traceback.extract_tb(error.__traceback__)
        result["error"] = {
            "type": type(error).__name__,
            "message": str(error),
            "place": _place(frames[-1].filename, frames[-1].lineno or 0),
            "called_from": _innermost(frames),
        }
    Path(out).write_text(json.dumps(result), encoding="utf-8")
    return 0


def _caller() -> str:
    """The innermost line outside of transformers that led here."""
    return _innermost(traceback.extract_stack())


def _innermost(frames: traceback.StackSummary) -> str:
    for frame in reversed(frames):
        if _is_foreign(frame.filename):
            return _place(frame.filename, frame.lineno or 0)
    return ""


def _is_foreign(filename: str) -> bool:
    parts = Path(filename).parts
    return "transformers" not in parts and Path(filename) != Path(__file__) and not filename.startswith("<")


def _place(filename: str, line: int) -> str:
    path = Path(filename)
    for root in (Path(sys.path[0]), *(Path(entry) for entry in sys.path[1:] if entry)):
        if path.is_relative_to(root):
            return f"{path.relative_to(root).as_posix()}:{line}"
    return f"{os.path.basename(filename)}:{line}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3:]))
