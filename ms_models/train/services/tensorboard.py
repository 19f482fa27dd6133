"""`TensorBoard`: the figures of steps and evaluations as event files, by TensorBoard's own writer."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mappings.errors import UserError
from ms_models.train.services.service import Service

FOLDER = "tensorboard"
"""Name in the run directory."""
GROUPS = {
    "eval_": "evaluation/",
    "time_": "time/",
    "compute_": "time/",
    "memory_": "memory/",
    "checkpoint_": "checkpoint/",
}
"""Beginnings of names that become a group of charts; all others are in `train/`."""


class TensorBoard(Service):
    """Writes a new event file, which takes the place of what an earlier one holds of later steps.

    Args:
        directory: of event files.
        resume_step: step that the run goes on behind, 0 at the start.

    Raises:
        UserError: tensorboard is not installed.
    """

    def __init__(self, directory: Path, *, resume_step: int) -> None:
        try:
            from tensorboard.compat.proto import event_pb2, summary_pb2
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
        except ImportError as error:
            raise UserError(
                "metrics.tensorboard needs TensorBoard: pip install 'msmigrate[viz]', or leave it out"
            ) from error
        self._events, self._summaries = event_pb2, summary_pb2
        directory.mkdir(parents=True, exist_ok=True)
        self._writer = EventFileWriter(str(directory))
        # TensorBoard drops what an earlier file of the directory has from this step on.
        begin = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        self._writer.add_event(event_pb2.Event(wall_time=time.time(), step=resume_step + 1, session_log=begin))

    def after_step(self, record: Mapping[str, Any]) -> None:
        """A point in each chart; texts become texts."""
        values = []
        for name, value in record.items():
            if name == "step" or isinstance(value, bool) or not isinstance(value, int | float):
                continue
            values.append(self._summaries.Summary.Value(tag=_tag(name), simple_value=float(value)))
        summary = self._summaries.Summary(value=values)
        self._writer.add_event(self._events.Event(wall_time=time.time(), step=record["step"], summary=summary))

    after_evaluation = after_step

    def after_save(self, step: int, directory: Path, record: Mapping[str, Any]) -> None:
        """A point in the charts of checkpoints."""
        self.after_step(record)

    def close(self, error: BaseException | None) -> None:
        """Everything is on the disk."""
        self._writer.flush()
        self._writer.close()


def _tag(name: str) -> str:
    group = next((group for beginning, group in GROUPS.items() if name.startswith(beginning)), "train/")
    return group + name
