"""`RunConfig`: the whole configuration of a run. Read from YAML, changed by `--set a.b=c`, saved resolved with the run.

Paths are relative to the working directory.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml

from mappings.errors import UserError
from mappings.layout import ParallelLayout
from mappings.parallel_options import ParallelOptions
from ms_models.train.config.bounds import check_bounds
from ms_models.train.config.checkpoint import CheckpointConfig
from ms_models.train.config.data import EITHER, DataConfig
from ms_models.train.config.git_state import git_state
from ms_models.train.config.guard import GuardConfig
from ms_models.train.config.launch import LaunchConfig
from ms_models.train.config.loop import TrainConfig
from ms_models.train.config.masking import MaskingConfig
from ms_models.train.config.model import ModelConfig
from ms_models.train.config.optimizer import OptimizerConfig, ScheduleConfig
from ms_models.train.config.output import MetricsConfig, OutputConfig, ProfileConfig
from ms_models.train.config.precision import PrecisionConfig
from ms_models.train.config.versions import versions

RESOLVED = "config.yaml"
"""Name of the resolved configuration in the run directory."""


@dataclass(frozen=True)
class RunConfig:
    """The whole configuration."""

    model: ModelConfig
    train: TrainConfig
    output: OutputConfig
    data: DataConfig = field(default_factory=DataConfig)
    layout: ParallelLayout = field(default_factory=ParallelLayout)
    parallel: ParallelOptions = field(default_factory=ParallelOptions)
    masking: MaskingConfig = field(default_factory=MaskingConfig)
    precision: PrecisionConfig = field(default_factory=PrecisionConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    guard: GuardConfig = field(default_factory=GuardConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    metrics: MetricsConfig = field(default_factory=MetricsConfig)
    profile: ProfileConfig = field(default_factory=ProfileConfig)
    launch: LaunchConfig = field(default_factory=LaunchConfig)

    def __post_init__(self) -> None:
        check_bounds(self)
        batches = self.model.adapter and self.model.adapter.batches
        if not batches and not self.data.is_given:
            raise UserError(f"config: {EITHER}")
        if batches and self.data.is_given:
            raise UserError("config: 'model.adapter.batches' takes the place of data; leave section 'data' empty")
        if batches and self.metrics.prefixes:
            raise UserError(
                "config: 'metrics.prefixes' takes beginnings of prepared data, in whose place 'model.adapter.batches' "
                "stands; give 'metrics.prompts'"
            )
        if self.model.adapter is not None and self.masking != MaskingConfig():
            raise UserError("config: section 'masking' is for encoders of a known family, not for converted code")
        if self.schedule.warmup_steps >= self.train.steps:
            raise UserError(
                f"config: 'schedule.warmup_steps' is {self.schedule.warmup_steps}, but the run has {self.train.steps} "
                "steps; lower it"
            )

    @property
    def global_batch(self) -> int:
        """Sequences per optimizer step."""
        return self.train.micro_batch_size * self.train.accumulation * self.layout.dp

    @property
    def data_directory(self) -> Path:
        """Where the prepared data is, or will be; of a blend, its first part."""
        if self.data.blend:
            return Path(self.data.blend[0].path)
        return Path(self.data.path) if self.data.path is not None else Path(self.output.directory) / "data"

    @property
    def data_parts(self) -> tuple[tuple[Path, float], ...]:
        """Every directory of prepared data, and its weight in the stream."""
        return self.data.parts(self.data_directory)

    def to_dict(self) -> dict[str, Any]:
        """The configuration as plain data, every field named."""
        return asdict(self)

    def save(self, path: Path) -> None:
        """Writes the resolved configuration as YAML that `load` reads, with versions and git state as a comment."""
        known = versions() | git_state(Path.cwd())
        head = "".join(f"# {name} {value}\n" for name, value in known.items())
        plain = yaml.safe_load(json.dumps(self.to_dict()))  # tuples become lists
        path.write_text(head + yaml.safe_dump(plain, sort_keys=False), encoding="utf-8")
