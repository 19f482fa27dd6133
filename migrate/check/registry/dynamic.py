"""Who really registers what first: modules are imported in a process of their own, where registrations are recorded."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mappings.errors import UserError
from migrate.check.codes import finding
from migrate.processes import run
from migrate.report import Finding

RECORDER = Path(__file__).with_name("recorder.py")
TIMEOUT_S = 300.0


@dataclass(frozen=True)
class Recording:
    """What happened while modules were imported."""

    events: list[dict[str, Any]]
    """`name`, `class`, `place`, `taken` (before), `exist_ok`, in order."""
    imported: list[str]
    error: dict[str, str] | None
    """`type`, `message`, `place` and `called_from` of what ended the imports."""


def record(
    repository: Path, modules: Sequence[str], python: Path | None = None, timeout_s: float = TIMEOUT_S
) -> Recording:
    """Imports modules of a repository elsewhere. Runs their code.

    Args:
        repository: directory that stands first on the path.
        modules: importable names, in order.
        python: interpreter of the environment to import in; this one by default.
        timeout_s: after which the process is ended.

    Raises:
        UserError: the process ended without a recording.
    """
    with tempfile.TemporaryDirectory(prefix="msmigrate-registry-") as folder:
        out = Path(folder) / "events.json"
        command = [str(python or sys.executable), str(RECORDER), str(out), str(repository.absolute()), *modules]
        outcome = run(command, timeout_s, {"PYTHONDONTWRITEBYTECODE": "1"})
        if not out.is_file():
            raise UserError(f"--import {' '.join(modules)}: {outcome.reason()}")
        return Recording(**json.loads(out.read_text(encoding="utf-8")))


def judge_recording(recording: Recording) -> Iterator[Finding]:
    """Clashes that happened, each with who was there first."""
    first: dict[str, dict[str, Any]] = {}
    for event in recording.events:
        before = first.setdefault(event["name"], event)
        who = f"{event['place']} registers {event['name']!r} for {event['class']}"
        if before is not event and before["class"] != event["class"]:
            yield finding("C503", f"{who}; first was {before['place']} for {before['class']}")
        elif event["taken"] and event["exist_ok"]:
            yield finding("C502", f"{who}, with exist_ok, over the installed class")
    if recording.error is not None:
        error = recording.error
        where = error["called_from"] or error["place"]
        last = recording.events[-1] if recording.events else None
        is_clash = last is not None and last["taken"] and not last["exist_ok"] and "already used" in error["message"]
        if is_clash and last is not None:
            before = first[last["name"]]
            who = "transformers itself" if before is last else f"{before['place']} ({before['class']})"
            yield finding("C501", f"{where}: {error['type']}: {error['message']} The name was taken by {who}")
        else:
            yield finding("C513", f"{where}: {error['type']}: {error['message']}")
