"""`RunConfig`: everything a run depends on; a file for each section. Imports no MindSpore."""

from ms_models.train.config.adapter import AdapterConfig
from ms_models.train.config.checkpoint import CheckpointConfig
from ms_models.train.config.data import DataConfig
from ms_models.train.config.git_state import git_state
from ms_models.train.config.guard import GuardConfig
from ms_models.train.config.launch import LaunchConfig
from ms_models.train.config.loop import TrainConfig
from ms_models.train.config.masking import MaskingConfig
from ms_models.train.config.model import ModelConfig
from ms_models.train.config.optimizer import GroupConfig, OptimizerConfig, ScheduleConfig
from ms_models.train.config.output import MetricsConfig, OutputConfig, ProfileConfig
from ms_models.train.config.precision import PrecisionConfig
from ms_models.train.config.printing import config_lines
from ms_models.train.config.reading import load
from ms_models.train.config.run import RESOLVED, RunConfig
from ms_models.train.config.versions import versions

__all__ = [
    "RESOLVED",
    "AdapterConfig",
    "CheckpointConfig",
    "DataConfig",
    "GroupConfig",
    "GuardConfig",
    "LaunchConfig",
    "MaskingConfig",
    "MetricsConfig",
    "ModelConfig",
    "OptimizerConfig",
    "OutputConfig",
    "PrecisionConfig",
    "ProfileConfig",
    "RunConfig",
    "ScheduleConfig",
    "TrainConfig",
    "config_lines",
    "git_state",
    "load",
    "versions",
]
