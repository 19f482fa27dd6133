"""A sign of life after each step: the time of change of the rank's status file, which the launcher looks at."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ms_models.train.launch import status
from ms_models.train.services.service import Service


class Heartbeat(Service):
    """Touches the status file of a rank."""

    def __init__(self, logs: Path, rank: int) -> None:
        self._path = logs / status.file_name(rank)

    def after_step(self, record: Mapping[str, Any]) -> None:
        """The rank lives."""
        os.utime(self._path)
