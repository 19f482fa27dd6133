"""`Service`: what accompanies a run without being part of a step."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any


class Service:
    """Called by the loop at fixed points, on every rank that has the service. Each method does nothing here.

    A service may not raise for what the run can do without, and may not communicate unless every rank has it.
    """

    def before_step(self, step: int) -> None:
        """Step `step` begins."""

    def after_step(self, record: Mapping[str, Any]) -> None:
        """A step is done.

        Args:
            record: what metrics.jsonl gets, `step` first; the same on every rank except times.
        """

    def after_evaluation(self, record: Mapping[str, Any]) -> None:
        """An evaluation is done; see `after_step`."""

    def after_save(self, step: int, directory: Path, record: Mapping[str, Any]) -> None:
        """A checkpoint is complete, which may be steps after the one it is of.

        Args:
            step: it is of.
            directory: where it is.
            record: what metrics.jsonl gets: step, seconds from it to the complete checkpoint, those in which training
                waited, bytes.
        """

    def tell(self, line: str) -> None:
        """A line for the person who watches."""

    def close(self, error: BaseException | None) -> None:
        """The run ends.

        Args:
            error: what ended it early, None where nothing did.
        """
