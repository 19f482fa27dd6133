"""`evaluate_model`: evaluates a model directory or a checkpoint of a run, on one process or several."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mappings.errors import UserError
from mappings.formats.manifest import NAME as MANIFEST
from mappings.layout import ParallelLayout
from ms_models.data.records import VALIDATION, PreparedData
from ms_models.train.checkpoints.run_directory import complete_checkpoints, find_latest, read_manifest
from ms_models.train.config import RESOLVED, RunConfig
from ms_models.train.config.schema import build
from ms_models.train.launch import beats, status
from ms_models.train.launch.attempt import Local, run_attempt
from ms_models.train.launch.checks.data import check_length, vocabulary_fits
from ms_models.train.launch.checks.model import check_layout, check_model_task, read_model
from ms_models.train.launch.failure import Failure
from ms_models.train.launch.peers import Peers
from ms_models.train.launch.place import NodePlace
from ms_models.train.launch.processes import environment
from ms_models.train.launch.signals import Signals

WORKER = "ms_models.train.worker"
RESULT = "evaluation.json"


@dataclass(frozen=True)
class Request:
    """What is asked of a model."""

    data: Path | None
    """Prepared data; None takes that of the run whose checkpoint it is."""
    prompts: tuple[str, ...] = ()
    """Texts to continue."""
    prefixes: int = 0
    """Validation sequences whose beginnings are continued."""
    sample_tokens: int = 32
    """Tokens of a continuation."""
    temperature: float = 0.0
    """0 takes the likeliest token."""
    layout: Mapping[str, int] | None = None
    """Axes of the layout; one process where not given."""
    micro_batch_size: int = 1
    """Sequences per forward pass of one rank."""
    sequences: int | None = None
    """Sequences of the validation split; None takes all."""
    jit: bool = True
    """Compile the forward pass."""
    timeout_s: float = 0.0
    """End after this long; 0 sets no limit."""


def evaluate_model(source: Path, request: Request, say: Callable[[str], None]) -> dict[str, Any]:
    """Loss, perplexity and accuracy over the validation split, and continuations.

    Args:
        source: Hugging Face directory, checkpoint of a run, or a run, whose last checkpoint is taken.
        request: what to do with it.
        say: receives what is worth knowing meanwhile.

    Returns:
        `eval_loss`, `eval_perplexity`, `eval_accuracy`, `eval_tokens`, `samples`; and `model`, `data`, `layout`.

    Raises:
        UserError: something does not fit, or a process failed; nothing is left running.
    """
    checkpoint, values = _origin(source)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="msmigrate-eval-")))
        config = _config(values, request, folder)
        if config.data.is_given:
            _check(config, PreparedData.read(config.data_directory))
        place = NodePlace.of(config.launch, config.layout)
        signals = stack.enter_context(Signals())
        local = Local(config, place, environment(None, place), WORKER, say, None, signals, _deadline(request))
        failure = _run(local, checkpoint, folder / RESULT)
        if failure is not None:
            if failure.tail and failure.cause != "user":
                say(f"--- end of the log of {failure.who} ---\n{failure.tail}\n---")
            raise UserError(f"eval: {failure.who}: {failure.message}")
        found = json.loads((folder / RESULT).read_text(encoding="utf-8"))
    return {
        "model": str(checkpoint or source),
        "data": str(config.data_directory),
        "layout": str(config.layout),
        **found,
    }


def _origin(source: Path) -> tuple[Path | None, dict[str, Any]]:
    """The checkpoint, where it is one, and the configuration that the evaluation begins with."""
    is_run = (source / RESOLVED).is_file() or bool(complete_checkpoints(source))
    if not is_run and not (source / MANIFEST).is_file():
        return None, {"model": {"path": str(source)}}
    checkpoint = find_latest(source) if is_run else source
    values: dict[str, Any] = json.loads(json.dumps(read_manifest(checkpoint).training["config"]))
    kept: dict[str, Any] = {name: values[name] for name in ("model", "masking", "data", "parallel") if name in values}
    if kept["data"]["text"]:  # which the run has prepared
        kept["data"] = {"path": f"{values['output']['directory']}/data", "tokenizer": kept["data"]["tokenizer"]}
    return checkpoint, kept


def _config(values: dict[str, Any], request: Request, folder: Path) -> RunConfig:
    if request.data is not None:
        values["data"] = {"path": str(request.data)}
    elif "data" not in values:
        raise UserError("eval: give the prepared data with --data; a Hugging Face directory has none of its own")
    sections: dict[str, Any] = {
        "layout": {**(request.layout or {}), "zero": 0},
        "output": {"directory": str(folder)},
        "checkpoint": {"resume": True, "reshard": True},
        "train": {
            "steps": 1, "micro_batch_size": request.micro_batch_size, "eval_sequences": request.sequences,
            "jit": request.jit,
        },
        "metrics": {
            "prompts": list(request.prompts), "prefixes": request.prefixes, "sample_tokens": request.sample_tokens,
            "temperature": request.temperature,
        },
        "schedule": {"warmup_steps": 0},
    }  # fmt: skip
    return build(RunConfig, {**values, **sections})


def _check(config: RunConfig, data: PreparedData) -> None:
    if not data.splits[VALIDATION].rows:
        raise UserError(f"{config.data_directory}: there is no validation split; prepare the data with one")
    if config.model.path is None:
        return
    model = read_model(config)
    check_model_task(config, model)
    if config.layout.pp == 1:  # of a pipeline, the sizes of a training step are none of an evaluation's
        check_layout(config, model)
    check_length(data.seq_length, model)
    vocabulary_fits(config, model, data)


def _run(local: Local, checkpoint: Path | None, result: Path) -> Failure | None:
    logs = local.logs
    logs.mkdir(parents=True)
    for clear in (status.clear, beats.clear):
        clear(logs)
    local.config.save(Path(local.config.output.directory) / RESOLVED)
    arguments: Sequence[str] = [str(result.parent / RESOLVED), "--evaluate", str(result)]
    if checkpoint is not None:
        arguments = [*arguments, "--resume", str(checkpoint)]
    failure, _ = run_attempt(local, Peers(), 1, arguments, local.place.scheduler_port(), lambda failure: None)
    return failure


def _deadline(request: Request) -> float:
    return time.monotonic() + request.timeout_s if request.timeout_s else float("inf")


def layout_of(text: str) -> dict[str, int]:
    """`tp=2,dp=2` as axes.

    Raises:
        UserError: another form, or an axis that does not exist.
    """
    known = [name for name in asdict(ParallelLayout()) if name != "zero"]
    axes: dict[str, int] = {}
    for part in text.split(","):
        name, equals, size = part.strip().partition("=")
        if name not in known or not equals or not size.isdecimal():
            raise UserError(f"--layout {text}: must be like tp=2,dp=2 with axes of {', '.join(known)}")
        axes[name] = int(size)
    return axes
