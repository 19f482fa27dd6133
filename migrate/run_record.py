"""`RunRecord`: everything that a training run wrote about itself, read without MindSpore."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from mappings.errors import UserError

METRICS, CONFIG, EVENTS, RESTARTS, RANKS = (
    "metrics.jsonl",
    "config.yaml",
    "events.jsonl",
    "restarts.jsonl",
    "ranks.json",
)


@dataclass(frozen=True)
class RunRecord:
    """One run. Lists are in the order of steps, or of time."""

    directory: Path
    config: Mapping[str, Any]
    """Resolved configuration; empty where the file is missing."""
    versions: Mapping[str, str]
    """Of the last start."""
    steps: list[dict[str, Any]] = field(default_factory=list)
    """A record for each optimizer step; `loss` is None where the step was left out."""
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    checkpoints: list[dict[str, Any]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    """Starts, resumptions, ends, failures and skips, with times."""
    restarts: list[dict[str, Any]] = field(default_factory=list)
    ranks: list[dict[str, Any]] = field(default_factory=list)
    """Averages by rank."""
    data: Mapping[str, Any] = field(default_factory=dict)
    """The description of the prepared data; empty where it is not there any more."""
    model: Mapping[str, Any] = field(default_factory=dict)
    """`config.json` of the model the run began with; empty where it is not there any more."""

    @classmethod
    def read(cls, directory: Path) -> RunRecord:
        """Reads a run directory; what a run does not have yet is empty.

        Relative paths in its configuration are looked up from the working directory, then from beside the run.

        Raises:
            UserError: no metrics in it, or a file cannot be read.
        """
        metrics = directory / METRICS
        if not metrics.is_file():
            raise UserError(f"{directory}: no {METRICS} in it, so this is no run directory")
        records = _lines(metrics)
        config = _yaml(directory / CONFIG)
        events = _lines(directory / EVENTS)
        starts = [event["versions"] for event in events if "versions" in event]
        return cls(
            directory=directory,
            config=config,
            versions=starts[-1] if starts else {},
            steps=[one for one in records if "loss" in one],
            evaluations=[one for one in records if "eval_loss" in one],
            checkpoints=sorted((one for one in records if "checkpoint_s" in one), key=lambda one: int(one["step"])),
            events=events,
            restarts=_lines(directory / RESTARTS),
            ranks=_json(directory / RANKS).get("ranks", []),
            data=_json(_data_directory(config, directory) / "data.json"),
            model=_json(_found(_at(config, "model.path") or directory, directory) / "config.json"),
        )

    @property
    def name(self) -> str:
        """Last part of the directory."""
        return self.directory.resolve().name

    def setting(self, path: str, default: Any = None) -> Any:
        """A field of the configuration by its dotted name."""
        found = _at(self.config, path)
        return default if found is None else found

    def series(self, key: str) -> tuple[list[int], list[float]]:
        """Steps and values of a figure, of the records that have it, over steps and evaluations."""
        found = [
            (one["step"], float(one[key]))
            for one in (*self.steps, *self.evaluations, *self.checkpoints)
            if isinstance(one.get(key), int | float) and not isinstance(one.get(key), bool)
        ]
        return [step for step, _ in found], [value for _, value in found]

    @property
    def world_size(self) -> int:
        """Ranks of the layout."""
        sizes = [int(self.setting(f"layout.{axis}", 1)) for axis in ("dp", "tp", "pp", "cp")]
        return sizes[0] * sizes[1] * sizes[2] * sizes[3]


def _data_directory(config: Mapping[str, Any], run: Path) -> Path:
    path = _at(config, "data.path")
    return _found(path, run) if path else run / "data"


def _found(path: Any, run: Path) -> Path:
    named = Path(str(path))
    return named if named.exists() else run.resolve().parent / named


def _at(values: Mapping[str, Any], path: str) -> Any:
    found: Any = values
    for name in path.split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def _lines(path: Path) -> list[dict[str, Any]]:
    """Records of a JSON-lines file; a last line without its end belongs to a run that still writes."""
    if not path.is_file():
        return []
    records = []
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True), 1):
        if not line.endswith("\n"):
            break
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise UserError(f"{path}:{number}: not valid JSON ({error.msg})") from error
        if not isinstance(record, dict) or (path.name == METRICS and type(record.get("step")) is not int):
            raise UserError(f"{path}:{number}: no record with a step")
        records.append(record)
    return records


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path}: not valid JSON ({error})") from error
    return found if isinstance(found, dict) else {}


def _yaml(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise UserError(f"{path}: not valid YAML ({' '.join(str(error).split())})") from error
    return found if isinstance(found, dict) else {}
