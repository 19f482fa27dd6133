"""`Terminal`: lines of a run, and on a terminal one more below them that is always that of the last step."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from ms_models.train.launch.eta import Eta

STEP_LINE = re.compile(r"step +\d+/\d+ ")
"""Of the progress file: the line of one step, which the live line replaces."""


class Terminal:
    """Standard output. A context manager.

    Args:
        steps: of the whole run.
        console: where to; a live line is shown where it is a terminal.
    """

    def __init__(self, steps: int, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False, soft_wrap=True)
        self._steps, self._eta = steps, Eta(steps)
        self._evaluation = ""
        self._live: Live | None = None
        self._last: Text | None = None

    def __enter__(self) -> Terminal:
        if self._console.is_terminal:
            self._live = Live(console=self._console, transient=True, auto_refresh=False, redirect_stderr=False)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
            if self._last is not None:
                self._console.print(self._last)  # how far the run came stays to be seen

    def say(self, line: str) -> None:
        """A line that stays; of a single step only where nothing is live."""
        if self._live is None:
            sys.stdout.write(f"{line}\n")
            sys.stdout.flush()
        elif not STEP_LINE.match(line):
            self._console.print(Text(line))

    def show(self, record: Mapping[str, Any]) -> None:
        """A record of metrics.jsonl."""
        if self._live is None:
            return
        if "eval_loss" in record:
            self._evaluation = f"  val {record['eval_loss']:.4f}"
        if "loss" in record:
            self._last = Text(self._line(record), no_wrap=True, overflow="ellipsis")
            self._live.update(self._last, refresh=True)

    def _line(self, record: Mapping[str, Any]) -> str:
        step, loss = record["step"], record["loss"]
        eta = self._eta.after(step)
        told = "skipped" if loss is None else f"{loss:.4f}"
        return (
            f"step {step}/{self._steps} ({100 * step / self._steps:.0f}%)  loss {told}  lr {record['lr']:.2e}  "
            f"{record['tokens_per_s']:,.0f} tokens/s{f'  eta {eta}' if eta else ''}{self._evaluation}"
        )
