"""`RunConfig`: everything a run depends on. Read from YAML, changed by `--set a.b=c`, saved resolved with the run.

Paths are relative to the working directory.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

import yaml

from mappings.errors import UserError
from mappings.layout import ParallelLayout
from mappings.parallel_options import ParallelOptions
from ms_models.train.schema import apply_override, build

RESOLVED = "config.yaml"
"""Name of the resolved configuration in the run directory."""
LEAST = {
    "train.steps": 1, "train.micro_batch_size": 1, "train.accumulation": 1, "train.seed": 0, "train.log_every": 1,
    "train.eval_every": 0, "train.eval_sequences": 1, "train.max_skips": 1, "train.threads": 1,
    "optimizer.lr": 0, "optimizer.weight_decay": 0, "optimizer.clip_norm": 0, "schedule.warmup_steps": 0,
    "checkpoint.every": 0, "checkpoint.keep": 2, "data.seq_length": 2, "data.processes": 1, "data.max_bytes": 1,
    "data.seed": 0, "launch.timeout_s": 0, "launch.stall_s": 0,
}  # fmt: skip
VERSIONED = ("msmigrate", "mindspore", "numpy")


@dataclass(frozen=True)
class ModelConfig:
    """The model to start from."""

    path: str
    """Hugging Face directory, or a sharded directory whose layout is the run's."""


@dataclass(frozen=True)
class DataConfig:
    """Prepared data, or the text to prepare into `<output>/data` when the run starts."""

    path: str | None = None
    """Directory made by `msmigrate data`."""
    text: tuple[str, ...] = ()
    """Sources of text; `stdlib` is the source of Python's own library."""
    tokenizer: str | None = None
    """Directory with tokenizer.json; None takes the model's."""
    seq_length: int | None = None
    """Tokens per sequence; required with `text`, checked against the data with `path`."""
    validation_fraction: float = 0.02
    """Share of the documents held out."""
    seed: int = 0
    """Seed of the order of documents and of the split."""
    processes: int = 2
    """Processes that tokenize."""
    max_bytes: int | None = None
    """Bytes of text to take; None takes all."""
    field: str = "text"
    """Name of the text in JSON-lines records."""


@dataclass(frozen=True)
class TrainConfig:
    """The loop."""

    steps: int
    """Optimizer steps of the whole run; the schedule ends there."""
    micro_batch_size: int = 1
    """Sequences per forward pass of one rank."""
    accumulation: int = 1
    """Forward passes of one rank per step. Global batch: micro_batch_size x accumulation x dp."""
    seed: int = 0
    """Seed of the order of the data and of every random generator."""
    log_every: int = 1
    """Steps between lines on the terminal; metrics.jsonl has every step."""
    eval_every: int = 0
    """Steps between evaluations; 0 evaluates never."""
    eval_sequences: int | None = None
    """Sequences of the validation split per evaluation; None takes all."""
    jit: bool = True
    """Compile forward, backward and update; false runs them operator by operator."""
    non_finite: Literal["stop", "skip"] = "stop"
    """What all ranks do with a step whose loss or gradient norm is not finite: end the run, or leave the step out."""
    max_skips: int = 3
    """With `skip`: end the run after this many such steps in a row."""
    threads: int | None = None
    """Threads per process (OMP_NUM_THREADS); None shares the cores evenly."""


@dataclass(frozen=True)
class OptimizerConfig:
    """AdamW with PyTorch's meaning of every number."""

    lr: float = 3e-4
    """Peak learning rate."""
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.1
    """Applies to matrices; norms and biases never decay."""
    clip_norm: float = 1.0
    """Largest global gradient norm; 0 leaves gradients as they are."""


@dataclass(frozen=True)
class ScheduleConfig:
    """Learning rate over the steps."""

    kind: Literal["cosine", "linear", "constant", "wsd"] = "cosine"
    warmup_steps: int = 0
    """Steps of linear rise from 0."""
    min_lr_ratio: float = 0.1
    """Last learning rate over the peak; `constant` ignores it."""
    decay_fraction: float = 0.1
    """`wsd`: share of the steps, at the end, in which the rate falls."""


@dataclass(frozen=True)
class CheckpointConfig:
    """Checkpoints in `<output>/step_NNNNNNNN`."""

    every: int = 0
    """Steps between checkpoints; 0 saves at the end only."""
    keep: int = 2
    """Complete checkpoints kept; at least 2."""
    resume: bool = False
    """Go on from the newest checkpoint in `output`, which must exist."""


@dataclass(frozen=True)
class OutputConfig:
    """Where the run writes."""

    directory: str


@dataclass(frozen=True)
class LaunchConfig:
    """Processes of the run."""

    timeout_s: float = 0.0
    """End the run after this long; 0 sets no limit."""
    stall_s: float = 1800.0
    """End the run when no rank reported anything for this long; 0 waits forever."""


@dataclass(frozen=True)
class RunConfig:
    """The whole configuration."""

    model: ModelConfig
    train: TrainConfig
    output: OutputConfig
    data: DataConfig = field(default_factory=DataConfig)
    layout: ParallelLayout = field(default_factory=ParallelLayout)
    parallel: ParallelOptions = field(default_factory=ParallelOptions)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    launch: LaunchConfig = field(default_factory=LaunchConfig)

    def __post_init__(self) -> None:
        check_values(self)

    @property
    def global_batch(self) -> int:
        """Sequences per optimizer step."""
        return self.train.micro_batch_size * self.train.accumulation * self.layout.dp

    @property
    def data_directory(self) -> Path:
        """Where the prepared data is, or will be."""
        return Path(self.data.path) if self.data.path is not None else Path(self.output.directory) / "data"

    def to_dict(self) -> dict[str, Any]:
        """The configuration as plain data, every field named."""
        return asdict(self)

    def save(self, path: Path) -> None:
        """Writes the resolved configuration as YAML that `load` reads, with the versions as a comment."""
        head = "".join(f"# {name} {number}\n" for name, number in versions().items())
        plain = yaml.safe_load(json.dumps(self.to_dict()))  # tuples become lists
        path.write_text(head + yaml.safe_dump(plain, sort_keys=False), encoding="utf-8")


def load(path: Path, overrides: Sequence[str] = ()) -> RunConfig:
    """Reads a configuration.

    Args:
        path: YAML file.
        overrides: `section.field=value` strings; the value is YAML.

    Raises:
        UserError: unreadable file, unknown key at any level, wrong type or value.
    """
    try:
        values = _parse(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read ({error})") from error
    except yaml.YAMLError as error:
        raise UserError(f"{path}: not valid YAML ({' '.join(str(error).split())})") from error
    if not isinstance(values, dict):
        raise UserError(f"{path}: must be a mapping of sections")
    for override in overrides:
        apply_override(values, override, _parse_override)
    return build(RunConfig, values)


def check_values(config: RunConfig) -> None:
    """Refuses values that no run can have.

    Raises:
        UserError: names the field, the value and the bound.
    """
    train, optimizer, schedule, data = config.train, config.optimizer, config.schedule, config.data
    for name, bound in LEAST.items():
        section, _, key = name.partition(".")
        value = getattr(getattr(config, section), key)
        if value is not None and value < bound:
            raise UserError(f"config: {name!r} must be at least {bound}, found {value}")
    fractions = {
        "schedule.min_lr_ratio": schedule.min_lr_ratio, "schedule.decay_fraction": schedule.decay_fraction,
        "data.validation_fraction": data.validation_fraction,
        "optimizer.betas[0]": optimizer.betas[0], "optimizer.betas[1]": optimizer.betas[1],
    }  # fmt: skip
    for name, fraction in fractions.items():
        if not 0 <= fraction < 1 and not (fraction == 1 and name.startswith("schedule")):
            raise UserError(f"config: {name!r} must be between 0 and 1, found {fraction}")
    if optimizer.eps <= 0:
        raise UserError(f"config: 'optimizer.eps' must be above 0, found {optimizer.eps}")
    if schedule.warmup_steps >= train.steps:
        raise UserError(
            f"config: 'schedule.warmup_steps' is {schedule.warmup_steps}, but the run has {train.steps} steps; lower it"
        )
    if (data.path is None) == (not data.text):
        raise UserError("config: give either 'data.path' (prepared data) or 'data.text' (text to prepare)")
    if data.text and data.seq_length is None:
        raise UserError("config: 'data.seq_length' is missing; 'data.text' needs it")


def versions() -> dict[str, str]:
    """Versions of what a run depends on; the same keys in checkpoints and saved configurations."""
    result = {"python": platform.python_version()}
    for name in VERSIONED:
        try:
            result[name] = version(name)
        except PackageNotFoundError:
            result[name] = "not installed as a package"
    return result


class _Loader(yaml.SafeLoader):
    """Refuses a key that occurs twice, which YAML libraries take the last of."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                raise UserError(f"config: key {key!r} occurs twice in the section of line {node.start_mark.line + 1}")
        return super().construct_mapping(node, deep)


def _parse(text: str) -> Any:
    return yaml.load(text, _Loader)


def _parse_override(text: str) -> Any:
    try:
        return _parse(text)
    except yaml.YAMLError as error:
        raise UserError(f"--set: {text!r} is not valid YAML ({' '.join(str(error).split())})") from error
