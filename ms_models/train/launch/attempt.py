"""One attempt on one machine: its processes from start to end, its logs merged, its progress shown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ms_models.train.checkpoints.run_directory import LOGS, METRICS, PROGRESS
from ms_models.train.config import RESOLVED, RunConfig
from ms_models.train.launch.failure import Failure
from ms_models.train.launch.following import Tail
from ms_models.train.launch.merged_log import LogMerger
from ms_models.train.launch.peers import Peers
from ms_models.train.launch.place import NodePlace
from ms_models.train.launch.processes import Ranks, command_line, main_log, worker_log
from ms_models.train.launch.signals import Interrupted, Signals
from ms_models.train.launch.stalls import Limits
from ms_models.train.launch.terminal import Terminal
from ms_models.train.launch.watching import Watch


@dataclass(frozen=True)
class Local:
    """What attempts on this machine have in common."""

    config: RunConfig
    place: NodePlace
    env: dict[str, str]
    worker: str
    """Module that each rank runs."""
    say: Callable[[str], None]
    terminal: Terminal | None
    """Gets the records of steps; None where lines go elsewhere."""
    signals: Signals
    deadline: float
    """`time.monotonic()` at which the run has to be over."""

    @property
    def logs(self) -> Path:
        """Directory of logs."""
        return Path(self.config.output.directory) / LOGS


def worker_arguments(config: RunConfig, resume: str | None, stop_after: int | None) -> list[str]:
    """Command line of a rank."""
    arguments = [str(Path(config.output.directory) / RESOLVED)]
    if resume is not None:
        arguments += ["--resume", resume]
    if stop_after is not None:
        arguments += ["--stop-after", str(stop_after)]
    return arguments


def run_attempt(
    local: Local,
    peers: Peers,
    number: int,
    arguments: Sequence[str],
    port: int,
    on_failure: Callable[[Failure], None],
) -> tuple[Failure | None, int]:
    """Starts the ranks of this machine and watches them to the end; none is left afterwards.

    Args:
        local: the run on this machine.
        peers: the other machines.
        number: of the attempt.
        arguments: of each rank.
        port: of MindSpore's scheduler.
        on_failure: called with what went wrong before the processes are ended.

    Returns:
        What went wrong, None for nothing, and the furthest step seen.
    """
    logs, place, config = local.logs, local.place, local.config
    sources = {worker_log(logs, rank): f"rank {rank}" for rank in place.ranks}
    sources.setdefault(main_log(logs, place), "msrun" if place.nodes == 1 else f"msrun {place.node}")
    if place.node == 0:
        sources[logs / "scheduler.log"] = "scheduler"
    for path in sources:
        path.unlink(missing_ok=True)  # of the attempt before, which is in the merged log
    merger = LogMerger(logs, place, sources)
    merger.note(f"attempt {number}: {' '.join(arguments)}")
    progress = Tail(logs / PROGRESS)
    metrics = Tail(Path(config.output.directory) / METRICS, from_end=True)

    def show() -> None:
        merger.follow()
        if place.node == 0:
            for line in progress.lines():
                local.say(line)
            if local.terminal is not None:
                for record in metrics.records():
                    local.terminal.show(record)

    def tick() -> None:
        show()
        local.signals.check()

    limits = Limits(config.launch.stall_s, config.launch.compile_s)
    command = command_line(local.worker, arguments, place, port, logs)
    local.signals.deferred = True
    try:
        with Ranks(command, local.env, place, logs) as ranks:
            watch = Watch(ranks, peers, limits, local.deadline, tick)
            failure = watch.until_end()
            if failure is not None:
                merger.note(f"{failure.who}: {failure.message}")
                on_failure(failure)
        show()
    except Interrupted as interruption:
        merger.note(f"interrupted by {interruption}")
        raise
    finally:
        merger.close()
    local.signals.deferred = False
    local.signals.check()
    return failure, watch.step
