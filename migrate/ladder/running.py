"""`run_rung`: one rung as a run of its own, skipped where it is there already."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mappings.errors import UserError
from migrate.ladder.rungs import Rung

if TYPE_CHECKING:
    from ms_models.train.config import RunConfig

FOLDER = "ladder"
FINISHED = "finished.json"
PREPARES = "rung_1"
"""Directory of the rung that prepares the data which all of them read."""
WAIT_S = 86400
"""How long machines wait for the first one, which runs small rungs alone."""


@dataclass(frozen=True)
class Machines:
    """Where the ladder runs."""

    nodes: int = 1
    node_rank: int = 0
    master: str | None = None
    per_node: int = 1 << 30
    """Ranks of one machine."""

    def of(self, rung: Rung) -> int:
        """Machines of a rung: one as long as it has room."""
        return 1 if rung.ranks <= self.per_node else self.nodes


@dataclass
class Ladder:
    """What all rungs have in common."""

    config_path: Path
    config: RunConfig
    steps: int
    """Of each rung; the schedule is the run's."""
    machines: Machines = field(default_factory=Machines)
    force: bool = False
    overrides: tuple[str, ...] = ()
    """`section.field=value` strings of the user."""

    @property
    def root(self) -> Path:
        """Directory of all rungs."""
        return Path(self.config.output.directory) / FOLDER

    def settings(self, rung: Rung) -> list[str]:
        """Overrides of a rung, the user's first."""
        values: dict[str, Any] = {
            **rung.overrides(),
            "output.directory": str(self.root / rung.directory),
            "train.eval_every": 0,
            "checkpoint.every": 0,
            "checkpoint.permanent_every": 0,
            "checkpoint.resume": False,
            "checkpoint.resume_from": None,
            "launch.restarts": 0,
            "launch.nodes": self.machines.of(rung),
            "profile.steps": None,
        }
        if self.machines.of(rung) > 1:
            values |= {
                "launch.node_rank": self.machines.node_rank, "launch.master": self.machines.master,
                "launch.join_s": WAIT_S,
            }  # fmt: skip
        else:
            values |= {"launch.node_rank": 0, "launch.master": None}
        if not self.config.data.path and rung.directory != PREPARES:
            values |= {"data.path": str(self.root / PREPARES / "data"), "data.text": []}
        return [*self.overrides, *(f"{name}={json.dumps(value)}" for name, value in values.items())]

    def digest(self, rung: Rung) -> str:
        """Of everything a rung depends on; a rung with another one is run again."""
        body = {"config": self.config.to_dict(), "settings": self.settings(rung), "steps": self.steps}
        return hashlib.sha256(json.dumps(body, sort_keys=True, default=str).encode()).hexdigest()


def is_finished(ladder: Ladder, rung: Rung) -> bool:
    """Whether a rung ran to its end with these very settings."""
    mark = ladder.root / rung.directory / FINISHED
    if ladder.force or not mark.is_file():
        return False
    try:
        body = json.loads(mark.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{mark}: not valid JSON ({error}); remove it, or give --force") from error
    return bool(body.get("digest") == ladder.digest(rung))


def run_rung(ladder: Ladder, rung: Rung, say: Callable[[str], None]) -> int:
    """Runs a rung from its start, unless it is finished.

    Its last checkpoint is removed: a ladder compares, it trains nothing.

    Returns:
        The exit code of the run.

    Raises:
        UserError: configuration, model or data do not fit.
    """
    from ms_models.train.launch import starting

    directory = ladder.root / rung.directory
    if ladder.machines.node_rank > 0 and ladder.machines.of(rung) == 1:
        say(f"rung {rung.name}: runs on the first machine")
        return 0
    if ladder.machines.node_rank > 0:
        return starting.launch(ladder.config_path, ladder.settings(rung), stop_after=ladder.steps, echo=say)
    if is_finished(ladder, rung):
        say(f"rung {rung.name}: finished already, see {directory}; --force runs it again")
        return 0
    for name in ("metrics.jsonl", FINISHED):
        (directory / name).unlink(missing_ok=True)
    _remove_checkpoints(directory)
    say(f"rung {rung.name}: {rung.layout}, {rung.micro_batch_size} x {rung.accumulation} sequences per replica")
    code = starting.launch(
        ladder.config_path, ladder.settings(rung), stop_after=ladder.steps, echo=_without_advice_to_resume(say)
    )
    if code == 0:
        _remove_checkpoints(directory)
        body = {"digest": ladder.digest(rung), "layout": rung.layout.to_dict(), "steps": ladder.steps}
        (directory / FINISHED).write_text(json.dumps(body, indent=2) + "\n", encoding="utf-8")
    return code


def _without_advice_to_resume(say: Callable[[str], None]) -> Callable[[str], None]:
    """A rung is meant to stop early, and nobody goes on with it."""
    from ms_models.train.services.progress import STOPPED

    return lambda line: None if STOPPED in line else say(line)


def _remove_checkpoints(directory: Path) -> None:
    for path in directory.glob("step_*"):
        shutil.rmtree(path)
    (directory / "LATEST").unlink(missing_ok=True)
