"""Section `launch`: processes of the run."""

from __future__ import annotations

from dataclasses import dataclass

from ms_models.train.config.bounds import number


@dataclass(frozen=True)
class LaunchConfig:
    """Processes of the run."""

    timeout_s: float = number(0.0, least=0)
    """End the run after this long; 0 sets no limit."""
    stall_s: float = number(1800.0, least=0)
    """End the run when a rank reported nothing for this long; 0 waits forever."""
    restarts: int = number(0, least=0)
    """Times that a run which failed goes on from its last good checkpoint."""
    nodes: int = number(1, least=1)
    """Machines; the ranks are shared evenly, in order."""
    node_rank: int = number(0, least=0)
    """Which of them this is; 0 is the master."""
    master: str | None = None
    """`host:port` of the first machine; required where `nodes` is above 1."""
