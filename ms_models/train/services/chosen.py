"""Which services a rank of a run has, and all of them as one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ms_models.parallel.mesh import Mesh
from ms_models.train.checkpoints.run_directory import LOGS, METRICS, PROGRESS
from ms_models.train.config import RunConfig
from ms_models.train.services import profiler
from ms_models.train.services.events import Events
from ms_models.train.services.heartbeat import Heartbeat
from ms_models.train.services.metrics_file import MetricsFile
from ms_models.train.services.profiler import ProfilerService
from ms_models.train.services.progress import Progress
from ms_models.train.services.service import Service
from ms_models.train.services.tensorboard import FOLDER, TensorBoard


class Services(Service):
    """Calls several services in their order; closes every one of them, whatever the others do."""

    def __init__(self, services: Sequence[Service]) -> None:
        self.services = services

    def before_step(self, step: int) -> None:
        """See `Service`."""
        for service in self.services:
            service.before_step(step)

    def after_step(self, record: Mapping[str, Any]) -> None:
        """See `Service`."""
        for service in self.services:
            service.after_step(record)

    def after_evaluation(self, record: Mapping[str, Any]) -> None:
        """See `Service`."""
        for service in self.services:
            service.after_evaluation(record)

    def after_save(self, step: int, directory: Path, record: Mapping[str, Any]) -> None:
        """See `Service`."""
        for service in self.services:
            service.after_save(step, directory, record)

    def tell(self, line: str) -> None:
        """See `Service`."""
        for service in self.services:
            service.tell(line)

    def close(self, error: BaseException | None) -> None:
        """See `Service`."""
        failures: list[Exception] = []
        for service in self.services:
            try:
                service.close(error)
            except Exception as failure:  # noqa: BLE001 - the others are closed first, then it is raised
                failures.append(failure)
        if failures:
            raise failures[0]


@contextmanager
def services_of(config: RunConfig, mesh: Mesh, resume_step: int) -> Iterator[Services]:
    """The services of this rank, closed in the end.

    Args:
        config: of the run.
        mesh: of this rank.
        resume_step: step that the run goes on behind, 0 at the start.
    """
    run = Path(config.output.directory)
    chosen: list[Service] = [Heartbeat()]
    if mesh.rank == 0:
        chosen += [
            MetricsFile(run / METRICS, resume_step=resume_step),
            Progress(run / LOGS / PROGRESS, config),
            Events(run, resume_step),
        ]
        if config.model.adapter is not None:
            from ms_models.train.adapter.final_weights import FinalWeights

            chosen.append(FinalWeights(run, config.train.steps))
        if config.metrics.tensorboard:
            chosen.append(TensorBoard(run / FOLDER, resume_step=resume_step))
    if config.profile.steps is not None and mesh.rank in config.profile.ranks:
        chosen.append(ProfilerService(run / profiler.FOLDER / f"rank_{mesh.rank:05d}", config.profile.steps))
    services = Services(chosen)
    try:
        yield services
    except BaseException as error:
        services.close(error)
        raise
    services.close(None)
