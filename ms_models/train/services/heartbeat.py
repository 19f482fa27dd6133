"""A sign of life at the begin and the end of each step; the step itself says where it is in `phases`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ms_models.train import phases
from ms_models.train.services.service import Service


class Heartbeat(Service):
    """Says which step this rank is in. The first of the services, so that a hang of another one shows as `report`."""

    def before_step(self, step: int) -> None:
        """The batch of the step is fetched next."""
        phases.enter("data", step)

    def after_step(self, record: Mapping[str, Any]) -> None:
        """The other services follow."""
        phases.enter("report")
