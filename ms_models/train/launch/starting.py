"""`launch`: checks a run, prepares its data, and runs it, alone or as one of several machines."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from mappings.errors import UserError
from ms_models.data.records import PreparedData
from ms_models.train.config import RunConfig, config_lines, load
from ms_models.train.launch import preflight, resuming
from ms_models.train.launch.attempt import Local
from ms_models.train.launch.checks.advice import warnings_of
from ms_models.train.launch.checks.questions import Source, check_row_length, data_questions
from ms_models.train.launch.conducting import conduct, meeting
from ms_models.train.launch.dry_run import judge
from ms_models.train.launch.joining import follow
from ms_models.train.launch.place import NodePlace
from ms_models.train.launch.processes import environment
from ms_models.train.launch.run_data import data_of_run
from ms_models.train.launch.signals import SIGNAL_EXIT, Interrupted, Signals
from ms_models.train.launch.terminal import Terminal

WORKER = "ms_models.train.worker"


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
        dry_run: check everything that needs no process, write nothing; see `dry_run.judge`.
        stop_after: save and stop after this step.
        echo: receives each line of progress; standard output where not given.

    Returns:
        0 when the run reached its end, 1 when it failed (the reason was shown), 128 + n after signal n; of a dry run,
        0 or 1.

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
    if dry_run:
        verdict = judge(config)
        for line in verdict.lines():
            say(line)
        return verdict.exit_code
    place = NodePlace.of(config.launch, config.layout)
    place.check_host()
    env = environment(config.train.threads, place)
    model = preflight.check_model(config)
    if place.node == 0:
        preflight.check_output(config, model)
    size = f", {model.parameters:,} parameters" if model.parameters else ""
    say(f"model: {model.name}{size}; layout: {config.layout}")
    say(f"global batch: {config.train.micro_batch_size} x {config.train.accumulation} x dp {config.layout.dp} "
        f"= {config.global_batch} sequences")  # fmt: skip
    for line in (*place.warnings(config.layout), *config_lines(config)):
        say(line)
    try:
        with Signals() as signals:
            deadline = began + config.launch.timeout_s if config.launch.timeout_s else float("inf")
            local = Local(config, place, env, WORKER, say, terminal, signals, deadline)
            if place.node > 0:
                return follow(local)  # data and checkpoint are the first machine's to see to
            with meeting(local) as peers:  # before data is prepared, which the others then wait for
                start = _prepare(config, model, say)
                return conduct(local, peers, start, stop_after)
    except Interrupted as interruption:
        say(f"interrupted by {interruption}; every process was ended")
        return SIGNAL_EXIT + interruption.number


def _prepare(config: RunConfig, model: Source, say: Callable[[str], None]) -> Path | None:
    """Makes and checks what ranks read; gives the checkpoint to go on from."""
    data = _data(config, model, say)
    if data is not None:
        answers = {name: question() for name, question in data_questions(config, model, data).items()}
        say(f"data: {answers['amount of data']}")
    for code, text in warnings_of(config, model, data):
        say(f"warning {code}: {text}")
    if not config.checkpoint.is_resumed:
        return None
    start, changes = resuming.check_resume(config, data)
    for line in changes:
        say(line)
    return start


def _data(config: RunConfig, model: Source, say: Callable[[str], None]) -> PreparedData | None:
    """The data; made here if the configuration names text. None where converted code yields its own batches."""
    if not config.data.is_given:
        return None

    def check_length(seq_length: int) -> None:
        check_row_length(config, model, seq_length)

    data = data_of_run(config, model.directory, check_length, False, say)
    assert data is not None, "only a dry run prepares nothing"
    return data
