"""Section `checkpoint`."""

from __future__ import annotations

from dataclasses import dataclass

from ms_models.train.config.bounds import number


@dataclass(frozen=True)
class CheckpointConfig:
    """Checkpoints in `<output>/step_NNNNNNNN`."""

    every: int = number(0, least=0)
    """Steps between checkpoints; 0 saves at the end only."""
    keep: int = number(2, least=2)
    """Complete checkpoints kept; at least 2."""
    permanent_every: int = number(0, least=0)
    """Checkpoints of multiples of this step are never removed; 0 for none."""
    asynchronous: bool = True
    """Write while training goes on; the last one is waited for."""
    resume: bool = False
    """Go on from the newest checkpoint in `output`, which must exist."""
    reshard: bool = False
    """With `resume`: a checkpoint of another layout is recut for the one of this run."""
