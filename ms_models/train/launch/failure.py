"""`Failure`: why an attempt at a run ended early."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

Cause = Literal["user", "run", "interrupted", "died", "lost", "stalled", "defect", "launcher", "timeout"]
ORDER: tuple[Cause, ...] = ("user", "run", "interrupted", "died", "lost", "stalled", "defect", "launcher", "timeout")
"""Of several failures at once, the first of these is the reason and the others follow from it: a rank whose neighbour
died reports a lost connection, not the other way round."""
RESTARTABLE = frozenset({"died", "lost", "stalled", "defect", "launcher"})
"""Not a fault of the input, a decision of the guard or of a person, nor the limit of time: these would come again."""


@dataclass(frozen=True)
class Failure:
    """Why an attempt ended early."""

    message: str
    rank: int | None = None
    cause: Cause = "launcher"
    tail: str = ""
    """The end of the failing rank's log."""
    node: int | None = None
    at: float = 0.0
    """Seconds since the epoch by the clock of the rank's machine; 0 where unknown."""

    @property
    def who(self) -> str:
        """The culprit, for messages."""
        if self.rank is not None:
            return f"rank {self.rank}" if self.node is None else f"rank {self.rank} (node {self.node})"
        return "the run" if self.node is None else f"node {self.node}"

    @property
    def is_restartable(self) -> bool:
        """Whether another attempt may end better."""
        return self.cause in RESTARTABLE

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Failure:
        """From plain data."""
        return cls(**values)


def first_reason(failures: Sequence[Failure]) -> Failure:
    """The failure that the others follow from."""
    return min(failures, key=lambda failure: (ORDER.index(failure.cause), failure.at))
