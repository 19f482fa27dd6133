"""`sweep`: tries micro-batch sizes and sequence lengths of a run for a few steps each: speed and memory.

The global batch stays what it is, so that every trial would train alike: a larger micro-batch goes with less
accumulation. Imports no MindSpore.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median

from mappings.errors import UserError
from ms_models.data import records
from ms_models.train.checkpoints.run_directory import METRICS
from ms_models.train.config import RunConfig, load
from ms_models.train.launch import starting
from ms_models.train.services.metrics_file import read_metrics

RESULT = "sweep.json"
LARGEST = 64
"""Of the micro-batch sizes that are tried where none are given; powers of two."""


@dataclass(frozen=True)
class Trial:
    """One setting and what it gave."""

    micro_batch_size: int
    accumulation: int
    seq_length: int | None
    """Tokens per sequence; before it was tried, None stands for that of the prepared data."""
    failure: str | None = None
    """Why there are no figures."""
    tokens_per_s: float | None = None
    """Median over the steps after the first, which compiles. Tokens are those that have a target."""
    step_s: float | None = None
    """Median over the same steps, seconds."""
    first_step_s: float | None = None
    """Seconds of the first step, compilation included."""
    memory_peak_gb: float | None = None
    """Largest of all ranks: of the device, or of the process where that is the CPU."""


def settings(config: RunConfig, micro: Sequence[int] | None, lengths: Sequence[int] | None) -> list[Trial]:
    """The settings to try, smallest first.

    Args:
        config: of the run.
        micro: micro-batch sizes; None tries the powers of two that fit.
        lengths: tokens per sequence; None leaves the run's. Only for data that is prepared from text.

    Raises:
        UserError: a size that does not divide the global batch, or lengths for data of one length.
    """
    of_rank = config.train.micro_batch_size * config.train.accumulation
    if micro is None:
        micro = [size for size in (1 << power for power in range(LARGEST.bit_length())) if not of_rank % size]
    if odd := [size for size in micro if size < 1 or of_rank % size]:
        raise UserError(
            f"sweep: micro-batch sizes {', '.join(map(str, odd))} do not divide the {of_rank} sequences that a rank "
            "has per step (train.micro_batch_size x train.accumulation)"
        )
    if lengths is not None and not config.data.text:
        raise UserError(
            "sweep: other sequence lengths need data.text, which is prepared for each; this data has one length"
        )
    return [
        Trial(size, of_rank // size, length)
        for length in (sorted(set(lengths)) if lengths else (config.data.seq_length,))
        for size in sorted(set(micro))
    ]


def sweep(
    config_path: Path,
    out: Path,
    overrides: Sequence[str] = (),
    *,
    micro: Sequence[int] | None = None,
    lengths: Sequence[int] | None = None,
    steps: int = 5,
    say: Callable[[str], None] = lambda line: None,
) -> list[Trial]:
    """Runs every setting in a launch of its own and writes `sweep.json` after each.

    A setting that fails (memory, layout, length) is a line of the table; the others are tried all the same.

    Args:
        config_path: configuration of the run.
        out: new or empty directory; runs are in it, without their checkpoints.
        overrides: `section.field=value` strings.
        micro: see `settings`.
        lengths: see `settings`.
        steps: of each trial, at least 2.
        say: told what is tried.

    Raises:
        UserError: the configuration, or the settings, do not fit.
    """
    config = load(config_path, overrides)
    if not 2 <= steps <= config.train.steps:
        raise UserError(f"sweep: --steps must be from 2 to the {config.train.steps} of the run, found {steps}")
    if out.exists() and any(out.iterdir()):
        raise UserError(f"{out}: is not empty; name a new directory")
    done: list[Trial] = []
    for trial in settings(config, micro, lengths):
        say(f"micro-batch {trial.micro_batch_size} x accumulation {trial.accumulation}, {_length(trial)}")
        tried = _try(config_path, config, out, list(overrides), trial, steps)
        done.append(replace(tried, seq_length=trial.seq_length or _length_of_data(config)))
        out.mkdir(parents=True, exist_ok=True)
        (out / RESULT).write_text(json.dumps([asdict(one) for one in done], indent=1), encoding="utf-8")
    return done


def table(trials: Sequence[Trial]) -> list[str]:
    """Lines of a Markdown table; the fastest setting is marked."""
    best = max((one.tokens_per_s for one in trials if one.tokens_per_s is not None), default=None)
    lines = [
        "| sequence | micro-batch | accumulation | tokens/s | step s | first step s | peak GB | |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for one in trials:
        head = f"| {one.seq_length or ''} | {one.micro_batch_size} | {one.accumulation} |"
        if one.tokens_per_s is None:
            lines.append(f"{head} | | | | {one.failure} |")
            continue
        mark = "fastest" if one.tokens_per_s == best else ""
        lines.append(
            f"{head} {one.tokens_per_s:,.0f} | {one.step_s:.3f} | {one.first_step_s:.1f} | {one.memory_peak_gb:.2f} | "
            f"{mark} |"
        )
    return lines


def _try(path: Path, config: RunConfig, out: Path, overrides: list[str], trial: Trial, steps: int) -> Trial:
    name = f"length_{trial.seq_length or 'as_is'}_micro_{trial.micro_batch_size}"
    run, data = out / name, out / f"length_{trial.seq_length}_data"
    changes = {
        "train.micro_batch_size": trial.micro_batch_size,
        "train.accumulation": trial.accumulation,
        "train.eval_every": 0,
        "checkpoint.every": 0,
        "checkpoint.resume": False,
        "output.directory": str(run),
    }
    if config.data.text:
        is_there = (data / records.NAME).is_file()
        changes |= {"data.text": [], "data.path": str(data)} if is_there else {"data.seq_length": trial.seq_length}
    said: list[str] = []
    try:
        settings = [*overrides, *(f"{field}={json.dumps(value)}" for field, value in changes.items())]
        code = starting.launch(path, settings, stop_after=steps, echo=said.append)
        if code > 128:
            raise UserError(f"sweep: interrupted during {name}; what is done is in {out / RESULT}")
        failure = None if code == 0 else next((line for line in reversed(said) if "failed:" in line), said[-1])
    except UserError as error:
        if str(error).startswith("sweep:"):
            raise
        failure = str(error)
    for checkpoint in run.glob("step_*"):
        shutil.rmtree(checkpoint)
    if (run / "data" / records.NAME).is_file():
        (run / "data").replace(data)  # for the next setting of this length
    if failure is not None:
        return replace(trial, failure=failure)
    found = [one for one in read_metrics(run / METRICS) if "step_time_s" in one]
    later = found[1:]
    return replace(
        trial,
        tokens_per_s=median(one["tokens_per_s"] for one in later),
        step_s=median(one["step_time_s"] for one in later),
        first_step_s=found[0]["step_time_s"],
        memory_peak_gb=max(one["memory_peak_gb"] for one in found),
    )


def _length_of_data(config: RunConfig) -> int | None:
    """Tokens per sequence of prepared data; None where there is none (converted code has its own)."""
    if not config.data.is_given or not (directory := config.data_parts[0][0]).is_dir():
        return None
    return records.PreparedData.read(directory).seq_length


def _length(trial: Trial) -> str:
    return "sequences as they are" if trial.seq_length is None else f"sequences of {trial.seq_length}"
