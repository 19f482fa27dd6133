"""Sections `output`, `metrics` and `profile`: what a run leaves behind."""

from __future__ import annotations

from dataclasses import dataclass

from ms_models.train.config.bounds import number


@dataclass(frozen=True)
class OutputConfig:
    """Where the run writes."""

    directory: str


@dataclass(frozen=True)
class MetricsConfig:
    """What is measured besides loss, gradient norm, learning rate and speed."""

    tensorboard: bool = False
    """Write event files to `<output>/tensorboard`; needs the extra `viz`."""
    peak_tflops: float | None = number(None, above=0)
    """Peak of one device at the precision of the run, in TFLOP/s; None leaves the utilisation (MFU) out."""


@dataclass(frozen=True)
class ProfileConfig:
    """`mindspore.Profiler` over some steps."""

    steps: tuple[int, int] | None = number(None, least=1)
    """First and last step to record; None records none."""
