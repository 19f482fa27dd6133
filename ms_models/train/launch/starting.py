"""`launch`: checks a run, prepares its data, and runs it, alone or as one of several machines."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mappings.errors import UserError
from ms_models.data import records
from ms_models.data.prepare import Tracker, prepare
from ms_models.data.records import PreparedData
from ms_models.data.tokenization import read_tokenizer
from ms_models.train.config import RunConfig, load
from ms_models.train.launch import preflight, resuming
from ms_models.train.launch.attempt import Local
from ms_models.train.launch.conducting import conduct
from ms_models.train.launch.joining import follow
from ms_models.train.launch.place import NodePlace
from ms_models.train.launch.processes import environment
from ms_models.train.launch.signals import Interrupted, Signals
from ms_models.train.launch.terminal import Terminal

WORKER = "ms_models.train.worker"
SIGNAL_EXIT = 128
PROGRESS_INTERVAL_S = 5.0


def launch(
    config_path: Path,
    overrides: Sequence[str] = (),
    *,
    resume: bool = False,
    resume_from: str | None = None,
    reshard: bool = False,
    dry_run: bool = False,
    stop_after: int | None = None,
    echo: Callable[[str], None] | None = None,
) -> int:
    """Runs a training run from its configuration to its end.

    Args:
        config_path: YAML configuration.
        overrides: `section.field=value` strings.
        resume: go on from the newest checkpoint; sets `checkpoint.resume`.
        resume_from: go on from this one; sets `checkpoint.resume_from`.
        reshard: cut it anew where it is of another layout; sets `checkpoint.reshard`.
        dry_run: check everything that needs no process, write nothing.
        stop_after: save and stop after this step.
        echo: receives each line of progress; standard output where not given.

    Returns:
        0 when the run reached its end, 1 when it failed (the reason was shown), 128 + n after signal n.

    Raises:
        UserError: configuration, model, data or checkpoint do not fit, or another machine; nothing is left running.
    """
    config = load(config_path, overrides)
    if echo is not None:
        return _launch(config, echo, None, resume, resume_from, reshard, dry_run, stop_after)
    with Terminal(config.train.steps) as terminal:
        return _launch(config, terminal.say, terminal, resume, resume_from, reshard, dry_run, stop_after)


def _launch(
    config: RunConfig,
    say: Callable[[str], None],
    terminal: Terminal | None,
    resume: bool,
    resume_from: str | None,
    reshard: bool,
    dry_run: bool,
    stop_after: int | None,
) -> int:
    began = time.monotonic()
    config = resuming.requested(config, resume=resume, resume_from=resume_from, reshard=reshard)
    if stop_after is not None and not 1 <= stop_after <= config.train.steps:
        raise UserError(f"stop_after is {stop_after}, but the run has steps 1 to {config.train.steps}")
    place = NodePlace.of(config.launch, config.layout)
    env = environment(config.train.threads, place)
    model = preflight.check_model(config)
    if place.node == 0:
        preflight.check_output(config, model)
    say(f"model: {model.family.name}, {model.parameters:,} parameters; layout: {config.layout}")
    say(f"global batch: {config.train.micro_batch_size} x {config.train.accumulation} x dp {config.layout.dp} "
        f"= {config.global_batch} sequences")  # fmt: skip
    for line in place.warnings(config.layout):
        say(line)
    try:
        with Signals() as signals:
            deadline = began + config.launch.timeout_s if config.launch.timeout_s else float("inf")
            local = Local(config, place, env, WORKER, say, terminal, signals, deadline)
            if place.node > 0 and not dry_run:
                return follow(local)  # data and checkpoint are the first machine's to see to
            data = _data(config, model, dry_run, say)
            start = None
            if data is not None:
                for line in preflight.check_data(config, model, data):
                    say(line)
                if config.checkpoint.is_resumed:
                    start, changes = resuming.check_resume(config, data)
                    for line in changes:
                        say(line)
            if dry_run:
                say("dry run: every check passed, nothing was started")
                return 0
            return conduct(local, start, stop_after)
    except Interrupted as interruption:
        say(f"interrupted by {interruption}; every process was ended")
        return SIGNAL_EXIT + interruption.number


def _data(config: RunConfig, model: preflight.Model, dry_run: bool, say: Callable[[str], None]) -> PreparedData | None:
    """The prepared data; made here if the configuration names text. None in a dry run whose data is yet to be made."""
    directory, data = config.data_directory, config.data
    if data.path is not None:
        return PreparedData.read(directory)
    assert data.seq_length is not None
    preflight.check_length(data.seq_length, model)
    config.parallel.check(model.family, model.config, config.layout, data.seq_length)
    tokenizer = Path(data.tokenizer) if data.tokenizer is not None else model.directory
    settings: dict[str, Any] = {
        "seq_length": data.seq_length, "validation_fraction": data.validation_fraction, "seed": data.seed,
        "field": data.field, "max_bytes": data.max_bytes,
    }  # fmt: skip
    facts = read_tokenizer(tokenizer)
    if (directory / records.NAME).is_file():
        found = PreparedData.read(directory)
        wanted = {**settings, "text": list(data.text)}
        is_same = {name: found.request.get(name) for name in wanted} == wanted
        if is_same and found.tokenizer["sha256"] == facts.sha256:
            return found
        if config.checkpoint.is_resumed:
            raise UserError(f"{directory}: was prepared with other settings than the run's data section; restore those")
        if not dry_run:
            shutil.rmtree(directory)
    if dry_run:
        say(f"data: would be prepared from {', '.join(data.text)}")
        return None
    say(f"data: preparing {', '.join(data.text)}")
    prepare(data.text, tokenizer, directory, processes=data.processes, track=_tracker(say), **settings)
    return PreparedData.read(directory)


def _tracker(say: Callable[[str], None]) -> Tracker:
    @contextmanager
    def track(title: str, total: int) -> Iterator[Callable[[int], None]]:
        done, last = 0, time.monotonic()

        def advance(amount: int) -> None:
            nonlocal done, last
            done += amount
            if time.monotonic() - last >= PROGRESS_INTERVAL_S:
                last = time.monotonic()
                say(f"{title}: {100 * done / max(total, 1):.0f}%")

        yield advance

    return track
