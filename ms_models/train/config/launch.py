"""Section `launch`: processes of the run."""

from __future__ import annotations

from dataclasses import dataclass

from ms_models.train.config.bounds import number


@dataclass(frozen=True)
class LaunchConfig:
    """Processes of the run."""

    timeout_s: float = number(0.0, least=0)
    """End the run after this many seconds, restarts included; 0 sets no limit."""
    stall_s: float = number(1800.0, least=0)
    """End an attempt when the ranks that all others wait for stand still for this many seconds; 0 waits forever."""
    compile_s: float = number(7200.0, least=0)
    """The same, in seconds, for what a process does for the first time, in which it compiles and loads; 0 waits
    forever, and less than `stall_s` counts as `stall_s`."""
    restarts: int = number(0, least=0)
    """Times that a run goes on from its last good checkpoint after a rank died, hung or met a defect, or a node was
    lost."""
    restart_pause_s: float = number(5.0, least=0)
    """Seconds before the first restart; each one after another doubles it, up to five minutes."""
    nodes: int = number(1, least=1)
    """Machines; the ranks are shared evenly, in order."""
    node_rank: int = number(0, least=0)
    """Which of them this is; 0 is the master."""
    master: str | None = None
    """`HOST:PORT` of the first machine; required where `nodes` is above 1. Its launcher listens there, MindSpore's
    scheduler at one of the 16 ports above."""
    join_s: float = number(600.0, above=0)
    """Seconds that the launchers of several machines wait for each other at the start and after the loss of one."""
    link_s: float = number(30.0, least=3)
    """A machine whose launcher was not heard for this many seconds is lost; they speak once a second."""
