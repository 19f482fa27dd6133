"""`events.jsonl`: when a run started, resumed and ended, with the reason. Never cut, so that it tells every attempt.

Written by the first rank, and by the launcher about ranks that cannot speak any more. Imports no MindSpore.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

EVENTS = "events.jsonl"
"""Name in the run directory."""


def note(run: Path, event: str, step: int, **facts: Any) -> None:
    """Appends an event with the time (seconds since the epoch).

    Args:
        run: run directory.
        event: `start`, `resume`, `skip`, `target`, `end` or `failure`.
        step: behind which it happened.
        facts: plain data.
    """
    line = json.dumps({"at": time.time(), "step": step, "event": event, **facts}) + "\n"
    with (run / EVENTS).open("a", encoding="utf-8") as file:
        file.write(line)
