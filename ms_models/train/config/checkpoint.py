"""Section `checkpoint`."""

from __future__ import annotations

from dataclasses import dataclass

from mappings.errors import UserError
from ms_models.train.config.bounds import number


@dataclass(frozen=True)
class CheckpointConfig:
    """Checkpoints in `<output>/step_NNNNNNNN`."""

    every: int = number(0, least=0)
    """Steps between checkpoints; 0 saves at the end only."""
    keep: int = number(2, least=2)
    """Complete checkpoints kept, the newest ones; at least 2."""
    permanent_every: int = number(0, least=0)
    """Checkpoints of multiples of this step are never removed; a multiple of `every`, 0 for none."""
    asynchronous: bool = True
    """Write while training goes on; the last one is waited for. Costs a copy of what a rank writes in host memory."""
    resume: bool = False
    """Go on from the newest checkpoint in `output`, which must exist."""
    resume_from: str | None = None
    """Go on from this checkpoint in `output`, such as step_00000100, in place of the newest; sets `resume`."""
    reshard: bool = False
    """With `resume`: a checkpoint of another layout is cut anew for the one of this run."""

    def __post_init__(self) -> None:
        if self.permanent_every and (not self.every or self.permanent_every % self.every):
            raise UserError(
                f"config: 'checkpoint.permanent_every' is {self.permanent_every}, which must be a multiple of "
                f"checkpoint.every ({self.every}), or no checkpoint would be permanent when it says"
            )

    @property
    def is_resumed(self) -> bool:
        """Whether the run goes on from a checkpoint of its own."""
        return self.resume or self.resume_from is not None

    def count(self, steps: int) -> int:
        """Complete or half-written checkpoints that are on the disk at once, at most, in a run of so many steps."""
        if not self.every:
            return 1
        saves = -(-steps // self.every)
        permanent = steps // self.permanent_every if self.permanent_every else 0
        # One more than is kept: the old ones go when the new one is complete.
        return min(saves, self.keep + 1 + permanent)
