"""`ProfilerService`: `mindspore.profiler` over the steps that `profile.steps` names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ms_models.compat.device import accelerator_available, synchronize
from ms_models.train.services.service import Service

FOLDER = "profile"
"""Name in the run directory; a folder `rank_NNNNN` for each rank in it."""


class ProfilerService(Service):
    """Records operators of one rank. What an accelerator adds (its kernels, their traffic) was not run here.

    Args:
        directory: of this rank's recording.
        steps: first and last step.
    """

    def __init__(self, directory: Path, steps: tuple[int, int]) -> None:
        self._directory, self._steps = directory, steps
        self._profile: Any = None

    def before_step(self, step: int) -> None:
        """Starts in the first of the steps, or where a resumed run begins among them."""
        if self._profile is not None or not self._steps[0] <= step <= self._steps[1]:
            return
        from mindspore import profiler

        activities = [profiler.ProfilerActivity.CPU]
        if accelerator_available():
            activities.append(profiler.ProfilerActivity.NPU)
        self._directory.mkdir(parents=True, exist_ok=True)
        handler = profiler.tensorboard_trace_handler(str(self._directory))
        self._profile = profiler.profile(activities=activities, start_profile=False, on_trace_ready=handler)
        self._profile.start()

    def after_step(self, record: Mapping[str, Any]) -> None:
        """Stops behind the last of the steps, and writes."""
        if self._profile is None:
            return
        self._profile.step()
        if record["step"] >= self._steps[1]:
            self._stop()

    def close(self, error: BaseException | None) -> None:
        """Stops early."""
        self._stop()

    def _stop(self) -> None:
        profile, self._profile = self._profile, None
        if profile is not None:
            synchronize()
            profile.stop()
