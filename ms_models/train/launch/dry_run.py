"""`judge`: everything about a run that needs no device and no process, all problems at once. Imports no MindSpore."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from ms_models.data.records import PreparedData
from ms_models.train.config import RunConfig, config_lines, git_state, versions
from ms_models.train.launch import resuming
from ms_models.train.launch.checks.advice import warnings_of
from ms_models.train.launch.checks.check import Check, Checks
from ms_models.train.launch.checks.devices import check_devices, check_versions
from ms_models.train.launch.checks.model import Model
from ms_models.train.launch.checks.output import check_directory, check_disk
from ms_models.train.launch.checks.questions import (
    Source,
    check_row_length,
    data_questions,
    model_questions,
    read_source,
)
from ms_models.train.launch.place import NodePlace
from ms_models.train.launch.processes import environment
from ms_models.train.launch.run_data import data_of_run

EXIT_CODES = {"pass": 0, "fail": 1, "could_not_run": 2}


@dataclass(frozen=True)
class Verdict:
    """What a dry run found."""

    checks: tuple[Check, ...]
    config: RunConfig | None
    """None where there is none that can be read; the only check says why."""
    model: Model | None = None
    """Where it could be read."""
    seq_length: int | None = None
    """Of the data, or as it will be prepared."""

    @property
    def verdict(self) -> Literal["pass", "fail", "could_not_run"]:
        """`fail` where a check failed; warnings pass."""
        if self.config is None:
            return "could_not_run"
        return "fail" if any(check.verdict == "fail" for check in self.checks) else "pass"

    @property
    def exit_code(self) -> int:
        """0 the run can start, 1 it cannot, 2 there is no configuration that can be read."""
        return EXIT_CODES[self.verdict]

    def with_check(self, check: Check) -> Verdict:
        """The same with another answer."""
        return replace(self, checks=(*self.checks, check))

    def to_json(self) -> str:
        """The verdict for programs; `checks` has every question in its order."""
        body: dict[str, Any] = {
            "verdict": self.verdict,
            "checks": [asdict(check) for check in self.checks],
            "config": None if self.config is None else self.config.to_dict(),
            "versions": versions() | git_state(Path.cwd()),
        }
        return json.dumps(body, indent=2)

    def lines(self) -> Iterator[str]:
        """The verdict for people."""
        if self.config is not None:
            yield from config_lines(self.config)
        yield from (check.line for check in self.checks)
        counts = [sum(check.verdict == kind for check in self.checks) for kind in ("fail", "warning")]
        warned = f", {counts[1]} warning{'s' if counts[1] != 1 else ''}" if counts[1] else ""
        if self.verdict == "pass":
            yield f"dry run: every check passed{warned}; nothing was started"
        else:
            yield f"dry run: {counts[0]} check{'s' if counts[0] != 1 else ''} failed{warned}; this run cannot start"


def could_not_run(reason: str) -> Verdict:
    """The verdict on a configuration that cannot be read."""
    return Verdict((Check("configuration", "fail", " ".join(reason.split())),), None)


def judge(config: RunConfig) -> Verdict:
    """Asks everything that a start would ask, and goes on after a failure.

    Args:
        config: of the run, with what the command line says about resuming.
    """
    checks = Checks()
    checks.ask("versions", check_versions)
    place = checks.get("machines", lambda: NodePlace.of(config.launch, config.layout))
    if place is not None:
        checks.get("machines", place.check_host)
        checks.ask("interpreter", lambda: f"{_python(environment(config.train.threads, place))} starts the ranks")
        checks.ask("devices", lambda: check_devices(place))
        for line in place.warnings(config.layout):
            checks.warn("machines", "R102", line.removeprefix("warning: "))
    checks.ask("output directory", lambda: check_directory(config))
    model = checks.get("model", lambda: read_source(config))
    data = None
    if model is None:
        checks.skip(["task", "layout", "weights", "metrics", "disk", "data"], "the model could not be read")
    else:
        _ask_about_model(checks, config, model)
        data = _ask_about_data(checks, config, model)
    for code, text in warnings_of(config, model, data):
        checks.warn("advice", code, text)
    length = config.data.seq_length if data is None else data.seq_length
    return Verdict(tuple(checks.found), config, model if isinstance(model, Model) else None, length)


def _ask_about_model(checks: Checks, config: RunConfig, model: Source) -> None:
    checks.passed("model", f"{model.name}, {model.parameters:,} parameters" if model.parameters else model.name)
    for name, question in model_questions(config, model).items():
        checks.ask(name, question)
    checks.ask("disk", lambda: check_disk(config, model))


def _ask_about_data(checks: Checks, config: RunConfig, model: Source) -> PreparedData | None:
    if not config.data.is_given:  # converted code yields its own
        if config.checkpoint.is_resumed:
            _ask_about_checkpoint(checks, config, None)
        return None
    told: list[str] = []

    def fits(seq_length: int) -> None:
        check_row_length(config, model, seq_length)

    failed = len(checks.found)
    data = checks.get("data", lambda: data_of_run(config, model.directory, fits, True, told.append))
    if data is None:
        if len(checks.found) == failed:
            checks.passed("data", "; ".join(told).removeprefix("data: "))
        if config.checkpoint.is_resumed:
            checks.skip(["checkpoint"], "there is no data to go on in")
        return None
    for name, question in data_questions(config, model, data).items():
        checks.ask(name, question)
    if config.checkpoint.is_resumed:
        _ask_about_checkpoint(checks, config, data)
    return data


def _ask_about_checkpoint(checks: Checks, config: RunConfig, data: PreparedData | None) -> None:
    found = checks.get("checkpoint", lambda: resuming.check_resume(config, data))
    if found is not None:
        directory, changes = found
        checks.passed("checkpoint", f"{directory} is whole")
        for line in changes:
            checks.passed("checkpoint", line)


def _python(variables: dict[str, str]) -> str:
    return f"{variables['PATH'].partition(':')[0]}/python"
