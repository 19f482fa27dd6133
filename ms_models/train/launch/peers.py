"""`Peers`: the launchers of the other machines, as the one who watches a machine's ranks sees them. Here: none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ms_models.train.launch.beats import Beat
from ms_models.train.launch.failure import Failure
from ms_models.train.launch.stacks import Trace


class Peers:
    """A run on one machine: nobody to talk to. The first machine's `Hub` and the others' `Spoke` replace this."""

    decides: bool = True
    """Whether this machine says why an attempt ended, and what follows."""

    def publish(self, beats: Mapping[int, Beat], running: Sequence[int]) -> None:
        """Tells where this machine's ranks are, and which of them are not done."""

    def beats(self) -> dict[int, Beat]:
        """Where the ranks of other machines are."""
        return {}

    def running(self) -> list[int]:
        """Ranks of other machines that are not done."""
        return []

    def report(self, failure: Failure) -> None:
        """Tells the first machine of a failure here."""

    def failures(self) -> list[Failure]:
        """What went wrong on other machines, or with the way to them."""
        return []

    def doubtful_s(self) -> float:
        """Seconds until the silence of another machine is known to be its loss or none; 0 where all were just heard."""
        return 0.0

    def traces(self) -> dict[int, Trace]:
        """Stacks of the ranks of other machines, asked for now."""
        return {}

    def wants_traces(self) -> bool:
        """Whether the first machine asks for the stacks of this one's ranks."""
        return False

    def answer(self, traces: Mapping[int, Trace]) -> None:
        """Gives them."""

    def is_over(self) -> bool:
        """Whether the first machine said that every rank of all machines has finished."""
        return True
