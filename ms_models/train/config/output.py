"""Sections `output`, `metrics` and `profile`: what a run leaves behind."""

from __future__ import annotations

from dataclasses import dataclass

from mappings.errors import UserError
from ms_models.train.config.bounds import number


@dataclass(frozen=True)
class OutputConfig:
    """Where the run writes."""

    directory: str
    """Run directory: metrics, logs, checkpoints and the resolved configuration."""


@dataclass(frozen=True)
class MetricsConfig:
    """What is measured besides loss, gradient norm, learning rate and speed."""

    tensorboard: bool = False
    """Write event files to `<output>/tensorboard`; needs the extra `viz`."""
    peak_tflops: float | None = number(None, above=0)
    """Peak of one device at the precision of the run, in TFLOP/s; None leaves the utilisation (MFU) out."""
    smoothing: float = number(0.95, least=0, below=1)
    """Weight of the past in the smoothed loss and its spread (exponential averages, corrected for their start)."""
    target_loss: float | None = number(None, above=0)
    """Note the step and the tokens at which the smoothed loss is first this low; None notes nothing."""
    phases: bool = True
    """Wait for the device between the parts of a step, so that their times are known; false lets them overlap."""
    prompts: tuple[str, ...] = ()
    """Texts that each evaluation continues; needs the tokenizer of the model or of the data."""
    prefixes: int = number(0, least=0)
    """Sequences of the validation split whose first tokens each evaluation continues."""
    prefix_tokens: int = number(16, least=1)
    """How many first tokens of those."""
    sample_tokens: int = number(32, least=1)
    """Tokens of a continuation."""
    temperature: float = number(0.0, least=0)
    """Of continuations: 0 takes the likeliest token, above 0 tokens are drawn with `train.seed`."""


@dataclass(frozen=True)
class ProfileConfig:
    """`mindspore.Profiler` over some steps."""

    steps: tuple[int, int] | None = number(None, least=1)
    """First and last step to record; None records none."""
    ranks: tuple[int, ...] = (0,)
    """Ranks that record; recording slows a rank down, and the others wait for it."""

    def __post_init__(self) -> None:
        if self.steps is not None and self.steps[0] > self.steps[1]:
            raise UserError(f"config: 'profile.steps' must be first and last step, found {list(self.steps)}")
